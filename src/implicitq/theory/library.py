"""Finite MDPs to try things on: random (Garnet), classics, and the toy-text environments of Gymnasium."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import scipy.sparse as sparse

from implicitq.theory.mdp import FiniteMDP, check_count, check_number


def garnet(states: int, actions: int, branching: int, *, discount: float = 0.9, seed: int = 0) -> FiniteMDP:
    """Garnet(S, A, b): each (s, a) leads to b distinct random states, with probabilities from b - 1 random
    cuts of [0, 1].

    Rewards are uniform on [0, 1], one per (s, a). Sparse unless the table is small or nearly full.
    """
    states = check_count("states", states, least=1)
    actions = check_count("actions", actions, least=1)
    if check_count("branching", branching, least=1) > states:
        raise ValueError(f"branching must be an integer from 1 to the number of states ({states}), got {branching}.")
    rng = np.random.default_rng(seed)
    rows = states * actions
    successors = _distinct(rng, rows, branching, states)  # [S * A, b]
    cuts = np.sort(rng.random((rows, branching - 1)), axis=1)
    edges = np.concatenate([np.zeros((rows, 1)), cuts, np.ones((rows, 1))], axis=1)
    matrix = sparse.csr_array(
        (np.diff(edges, axis=1).ravel(), successors.ravel(), np.arange(0, rows * branching + 1, branching)),
        shape=(rows, states),
    )
    rewards = rng.random((states, actions))
    if rows * states <= 100_000 or branching > states // 4:
        return FiniteMDP(matrix.toarray().reshape(states, actions, states), rewards, discount)
    return FiniteMDP(matrix, rewards, discount)


def _distinct(rng: np.random.Generator, rows: int, count: int, states: int) -> np.ndarray:
    """`count` distinct states per row, sorted, [rows, count]; uniform among all subsets."""
    if (
        count * count > 2 * states
    ):  # redrawing would take too long: rank random numbers instead, a block of rows at a time
        block = max(1, 4_000_000 // states)
        sizes = [min(block, rows - first) for first in range(0, rows, block)]
        parts = [np.argpartition(rng.random((size, states)), count - 1, axis=1)[:, :count] for size in sizes]
        return np.sort(np.concatenate(parts), axis=1)
    chosen = np.sort(rng.integers(states, size=(rows, count)), axis=1)
    while True:
        repeated = np.flatnonzero((np.diff(chosen, axis=1) == 0).any(axis=1))
        if repeated.size == 0:
            return chosen
        chosen[repeated] = np.sort(rng.integers(states, size=(repeated.size, count)), axis=1)


def chain(length: int = 10, *, slip: float = 0.1, discount: float = 0.95) -> FiniteMDP:
    """A corridor: action 0 goes left, action 1 right, and with probability `slip` the other way.

    Staying at the left end pays 0.05 per step, moving on at the right end pays 1: a small near reward hides a
    large far one.
    """
    length = check_count("length", length, least=2)
    slip = check_number("slip", slip, "a number in [0, 1]", lambda x: 0 <= x <= 1)
    P = np.zeros((length, 2, length))
    states = np.arange(length)
    left, right = np.maximum(states - 1, 0), np.minimum(states + 1, length - 1)
    for action, (wanted, other) in enumerate([(left, right), (right, left)]):
        P[states, action, wanted] += 1.0 - slip
        P[states, action, other] += slip
    r = np.zeros((length, 2))
    r[0, 0], r[-1, 1] = 0.05, 1.0
    return FiniteMDP(P, r, discount)


def grid_world(
    height: int = 5, width: int = 5, *, slip: float = 0.2, discount: float = 0.95, step_reward: float = -0.04
) -> FiniteMDP:
    """A grid with actions up, right, down, left; with probability `slip` the move turns to either side.

    Walls stop the move. Every step costs `step_reward`; a step taken from the bottom right corner pays 1 and
    returns to the top left one, so the task goes on for ever. Sparse: it works for a million states too.
    """
    height, width = check_count("height", height, least=1), check_count("width", width, least=1)
    slip = check_number("slip", slip, "a number in [0, 1]", lambda x: 0 <= x <= 1)
    states = height * width
    row, column = np.divmod(np.arange(states), width)
    moves = [
        np.clip(row + down, 0, height - 1) * width + np.clip(column + right, 0, width - 1)
        for down, right in [(-1, 0), (0, 1), (1, 0), (0, -1)]
    ]
    successors = np.empty((states, 4, 3), dtype=np.int64)
    for action in range(4):
        for outcome, turn in enumerate([0, 1, 3]):
            successors[:, action, outcome] = moves[(action + turn) % 4]
    successors[-1] = 0
    weights = np.broadcast_to([1.0 - slip, slip / 2, slip / 2], successors.shape)
    rows = np.arange(states * 4).repeat(3)
    matrix = sparse.coo_array((weights.ravel(), (rows, successors.ravel())), shape=(states * 4, states)).tocsr()
    r = np.full((states, 4), float(step_reward))
    r[-1] = 1.0
    return FiniteMDP(matrix, r, discount)


def forest(ages: int = 10, *, fire: float = 0.1, discount: float = 0.96) -> FiniteMDP:
    """Forest management: action 0 waits, action 1 cuts. A waiting forest ages by one, or burns with
    probability `fire`.

    Cutting pays 1 (0 at age 0) and, at the oldest age, 2; waiting pays 4 at the oldest age and nothing
    before.
    """
    ages = check_count("ages", ages, least=2)
    fire = check_number("fire", fire, "a number in [0, 1]", lambda x: 0 <= x <= 1)
    P = np.zeros((ages, 2, ages))
    states = np.arange(ages)
    P[states, 0, np.minimum(states + 1, ages - 1)] = 1.0 - fire
    P[:, 0, 0] += fire
    P[:, 1, 0] = 1.0
    r = np.zeros((ages, 2))
    r[-1, 0] = 4.0
    r[1:, 1] = 1.0
    r[-1, 1] = 2.0
    return FiniteMDP(P, r, discount)


def from_gymnasium(environment: Any, *, discount: float = 0.99, **settings: Any) -> FiniteMDP:
    """The MDP of a Gymnasium environment, or its id, that has a table `P[s][a] = [(p, s', r, done), ...]`.

    FrozenLake, Taxi and CliffWalking do. Outcomes that end the episode lead to one extra absorbing state
    without reward, the last one. It is a state like the others: an entropy bonus, where there is one, is
    collected there too.
    """
    if isinstance(environment, str):
        import gymnasium

        environment = gymnasium.make(environment, **settings)
    table = getattr(environment.unwrapped, "P", None)
    if table is None:
        raise ValueError(f"{environment} has no transition table P; FrozenLake, Taxi and CliffWalking have one.")
    states, actions = len(table), len(table[0])
    P = sparse.lil_array(((states + 1) * actions, states + 1))
    r = np.zeros((states + 1, actions))
    for state in range(states):
        for action in range(actions):
            for probability, following, reward, done in table[state][action]:
                P[state * actions + action, states if done else int(following)] += probability
                r[state, action] += probability * reward
    P[states * actions :, states] = 1.0
    return FiniteMDP(P.tocsr(), r, discount)


def as_gymnasium(mdp: FiniteMDP, *, start: int | Any = 0, horizon: int = 200) -> Any:
    """The MDP as a `gymnasium.Env` with Discrete observations and actions.

    Episodes are truncated after `horizon` steps. `start` is a state, or a distribution [S] over states. The environment
    never terminates, because a finite MDP does not: an absorbing state is a state like the others. Randomness comes
    from `reset(seed=...)`.
    """
    from implicitq.theory.environment import MDPEnvironment

    if np.ndim(start) == 0:
        if not 0 <= check_count("start", start, least=0) < mdp.states:
            raise ValueError(
                f"start must be a state from 0 to {mdp.states - 1} or a distribution over them, got {start}."
            )
        start = np.eye(mdp.states)[start]
    start = np.asarray(start, dtype=np.float64)
    if start.shape != (mdp.states,) or not (start >= 0).all() or abs(start.sum() - 1) > 1e-8:
        raise ValueError(f"start must be a state or a distribution over the {mdp.states} states, got {start!r}.")
    return MDPEnvironment(mdp, start, check_count("horizon", horizon, least=1))


Name = Literal["garnet", "chain", "grid", "forest", "frozen-lake", "taxi", "cliff-walking"]


def by_name(name: str, *, seed: int = 0) -> FiniteMDP:
    """The MDP that the command line calls `name`."""
    if name == "garnet":
        return garnet(30, 4, 3, discount=0.9, seed=seed)
    if name in ("chain", "grid", "forest"):
        return {"chain": chain, "grid": grid_world, "forest": forest}[name]()
    families = {"frozen-lake": "FrozenLake", "taxi": "Taxi", "cliff-walking": "CliffWalking"}
    if name not in families:
        raise ValueError(f"mdp must be one of {', '.join(get_args(Name))}, got {name!r}.")
    return from_gymnasium(_newest(families[name]), discount=0.95)


def _newest(family: str) -> str:
    """The newest registered version of an environment: the number differs between releases of Gymnasium."""
    import gymnasium

    versions = [spec.version or 0 for spec in gymnasium.registry.values() if spec.name == family]
    return f"{family}-v{max(versions)}"
