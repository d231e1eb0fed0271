"""The dynamic programming schemes side by side: each is a starting state and one step, run by `trace.run`.

Notation: V_k values, pi policies, gamma discount, eps_k injected errors (absent without an error model). The
index convention of the records is that of `trace`: values[k] = V_k and policies[k] = pi_{k+1}. Shapes inside
a step: S states, A actions, B seeds, as [S, B] and [S, A, B].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from implicitq.theory.errors import ErrorModel
from implicitq.theory.mdp import FiniteMDP, check_alpha, check_number, check_temperature
from implicitq.theory.solve import greedy, soft_max
from implicitq.theory.trace import Keep, Noise, Scheme, Seeds, State, Trace, run


def iq_dp(
    mdp: FiniteMDP,
    *,
    alpha: float,
    temperature: float,
    iterations: int,
    errors: ErrorModel | None = None,
    seeds: Seeds = None,
    keep: Keep = "all",
) -> Trace:
    """IQ-DP(alpha, temperature), Eq. 3:

        temperature ln pi_{k+2} + V_{k+1} = r + alpha temperature ln pi_{k+1} + gamma P V_k + eps_{k+1}.

    Lemma 1 splits the right-hand side into its policy and value. The step works with the soft advantage
    temperature ln pi, in the unit of rewards, so that nothing is divided by a small temperature until the
    record is written. `q_values[k]` is the implicit Q-value temperature ln pi_{k+1} + V_k.
    """
    alpha, temperature = check_alpha(alpha), check_temperature(temperature)

    def start(batch: int) -> State:
        advantage = np.full((mdp.states, mdp.actions, batch), -temperature * np.log(mdp.actions))
        return State(np.zeros((mdp.states, batch)), advantage, advantage)

    def step(k: int, state: State, noise: Noise) -> State:
        q = mdp.backup(state.value)
        q += alpha * state.memory
        _add(q, noise(state.value))
        value, advantage = soft_max(q, temperature, axis=1)
        return State(value, q, advantage)

    scheme = Scheme("IQ-DP", alpha, temperature, start, step, lambda state: state.memory / temperature)
    return run(mdp, scheme, iterations=iterations, errors=errors, seeds=seeds, keep=keep)


def md_vi(
    mdp: FiniteMDP,
    *,
    kl: float,
    entropy: float,
    iterations: int,
    errors: ErrorModel | None = None,
    seeds: Seeds = None,
    keep: Keep = "all",
) -> Trace:
    """Mirror descent value iteration, MD-VI(kl, entropy), the right-hand side of Theorem 1 and App. A.4:

        Q_{k+1}  = r + gamma P V_k + eps_{k+1}
        pi_{k+2} = argmax_pi <pi, Q_{k+1}> + entropy H(pi) - kl KL(pi || pi_{k+1})
        V_{k+1}  = <pi_{k+2}, Q_{k+1}> + entropy H(pi_{k+2}) - kl KL(pi_{k+2} || pi_{k+1}).

    The maximiser is pi_{k+1}^{kl / (kl + entropy)} exp(Q_{k+1} / (kl + entropy)), normalised (Lemma 2). The
    value is computed from the inner products and not from the normaliser, on purpose: this is the independent
    side of Theorem 1. `q_values[k]` is Q_k; Q_0 = -entropy ln A is the constant that makes V_0 = 0 for
    uniform policies.
    """
    kl = check_temperature(kl, name="kl", zero=True)
    entropy = check_temperature(entropy, name="entropy", zero=True)
    if kl + entropy == 0:
        raise ValueError("kl + entropy must be > 0, got 0 for both; without regularisation, use value_iteration.")
    temperature, alpha = kl + entropy, kl / (kl + entropy)

    def start(batch: int) -> State:
        shape = (mdp.states, mdp.actions, batch)
        q = np.full(shape, -entropy * np.log(mdp.actions))
        return State(np.zeros((mdp.states, batch)), q, np.full(shape, -np.log(mdp.actions)))

    def step(k: int, state: State, noise: Noise) -> State:
        q = _add(mdp.backup(state.value), noise(state.value))
        previous = state.memory
        log_policy = soft_max(alpha * previous + q / temperature, 1.0, axis=1)[1]
        gain = q - entropy * log_policy - kl * (log_policy - previous)
        return State((np.exp(log_policy) * gain).sum(axis=1), q, log_policy)

    scheme = Scheme("MD-VI", alpha, temperature, start, step, lambda state: state.memory)
    return run(mdp, scheme, iterations=iterations, errors=errors, seeds=seeds, keep=keep)


def soft_value_iteration(
    mdp: FiniteMDP,
    *,
    temperature: float,
    iterations: int,
    errors: ErrorModel | None = None,
    seeds: Seeds = None,
    keep: Keep = "all",
) -> Trace:
    """V_{k+1} = temperature ln sum_a exp(Q_{k+1} / temperature) with Q_{k+1} = r + gamma P V_k + eps_{k+1}.

    The policy is softmax(Q / temperature): the dynamic programming form of soft actor-critic. `q_values[k]`
    is Q_k.
    """
    temperature = check_temperature(temperature)

    def start(batch: int) -> State:
        q = np.full((mdp.states, mdp.actions, batch), -temperature * np.log(mdp.actions))
        return State(np.zeros((mdp.states, batch)), q, q)

    def step(k: int, state: State, noise: Noise) -> State:
        q = _add(mdp.backup(state.value), noise(state.value))
        value, _ = soft_max(q, temperature, axis=1)
        return State(value, q, q)

    def log_policy(state: State) -> np.ndarray:
        return soft_max(state.q, temperature, axis=1)[1] / temperature

    scheme = Scheme("soft value iteration", 0.0, temperature, start, step, log_policy)
    return run(mdp, scheme, iterations=iterations, errors=errors, seeds=seeds, keep=keep)


def value_iteration(
    mdp: FiniteMDP,
    *,
    iterations: int,
    errors: ErrorModel | None = None,
    seeds: Seeds = None,
    keep: Keep = "all",
) -> Trace:
    """V_{k+1} = max_a Q_{k+1} with Q_{k+1} = r + gamma P V_k + eps_{k+1}; greedy policies. `q_values[k]` is
    Q_k.
    """

    def step(k: int, state: State, noise: Noise) -> State:
        q = _add(mdp.backup(state.value), noise(state.value))
        return State(q.max(axis=1), q, q)

    scheme = _greedy_scheme("value iteration", mdp, step)
    return run(mdp, scheme, iterations=iterations, errors=errors, seeds=seeds, keep=keep)


def advantage_learning(
    mdp: FiniteMDP,
    *,
    alpha: float,
    iterations: int,
    errors: ErrorModel | None = None,
    seeds: Seeds = None,
    keep: Keep = "all",
) -> Trace:
    """Advantage learning (Bellemare et al. 2016), the limit of IQ-DP as temperature -> 0 (Sec. 3.1):

    Q_{k+1} = r + gamma P max_a Q_k + alpha (Q_k - max_a Q_k) + eps_{k+1}.
    """
    alpha = check_alpha(alpha)

    def step(k: int, state: State, noise: Noise) -> State:
        q = mdp.backup(state.value) + alpha * (state.q - state.value[:, None])
        _add(q, noise(state.value))
        return State(q.max(axis=1), q, q)

    scheme = _greedy_scheme("advantage learning", mdp, step, alpha)
    return run(mdp, scheme, iterations=iterations, errors=errors, seeds=seeds, keep=keep)


def speedy_q_learning(
    mdp: FiniteMDP,
    *,
    iterations: int,
    errors: ErrorModel | None = None,
    seeds: Seeds = None,
    keep: Keep = "all",
) -> Trace:
    """Synchronous Speedy Q-learning (Azar et al. 2011), with rate a = 1 / (k + 1) and T_k Q = r + gamma P max
    Q + eps:

        Q_{k+1} = Q_k + a (T_k Q_{k-1} - Q_k) + (1 - a) (T_k Q_k - T_k Q_{k-1}),   Q_{-1} = Q_0 = 0.

    Both applications of T_k share their samples; pair it with `SampledTransitions`.
    """

    def step(k: int, state: State, noise: Noise) -> State:
        rate, previous = 1.0 / k, state.memory.max(axis=1)  # the k of this loop is the formula's k + 1
        drawn = noise(state.value, previous)
        new, old = mdp.backup(state.value), mdp.backup(previous)
        if drawn is not None:
            new += drawn[0]
            old += drawn[1]
        q = state.q + rate * (old - state.q) + (1.0 - rate) * (new - old)
        return State(q.max(axis=1), q, state.q)

    scheme = _greedy_scheme("Speedy Q-learning", mdp, step)
    return run(mdp, scheme, iterations=iterations, errors=errors, seeds=seeds, keep=keep)


def q_learning(
    mdp: FiniteMDP,
    *,
    iterations: int,
    exponent: float = 1.0,
    errors: ErrorModel | None = None,
    seeds: Seeds = None,
    keep: Keep = "all",
) -> Trace:
    """Synchronous Q-learning: Q_{k+1} = (1 - a) Q_k + a (r + gamma P max Q_k + eps), a = 1 / (k +
    1)^exponent.

    exponent 1 is the linear rate, an exponent in (1/2, 1) a polynomial one; pair it with
    `SampledTransitions`.
    """
    exponent = check_number("exponent", exponent, "a number in [0, 1]", lambda x: 0 <= x <= 1)

    def step(k: int, state: State, noise: Noise) -> State:
        target = _add(mdp.backup(state.value), noise(state.value))
        q = state.q + (target - state.q) / k**exponent
        return State(q.max(axis=1), q, q)

    scheme = _greedy_scheme("Q-learning", mdp, step)
    return run(mdp, scheme, iterations=iterations, errors=errors, seeds=seeds, keep=keep)


def _greedy_scheme(name: str, mdp: FiniteMDP, step: Callable[[int, State, Noise], State], alpha: float = 0.0) -> Scheme:
    """A scheme on Q alone that starts at Q_0 = 0 and acts greedily; tied actions share the probability."""

    def start(batch: int) -> State:
        q = np.zeros((mdp.states, mdp.actions, batch))
        return State(np.zeros((mdp.states, batch)), q, q)

    return Scheme(name, alpha, 0.0, start, step, lambda state: greedy(state.q, axis=1))


def _add(q: np.ndarray, errors: list[np.ndarray] | None) -> np.ndarray:
    """q + errors, in place."""
    if errors is not None:
        q += errors[0]
    return q
