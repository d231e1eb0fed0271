"""Exact solutions: policy evaluation and the optimum, plain (temperature 0) and entropy-regularised.

Notation of Sec. 3: T_pi^t Q = r + gamma P <pi, Q - t ln pi>, and Q_*^t is the fixed point of its maximum over
pi. Up to `DIRECT_STATES` states linear systems are solved directly; beyond that by iteration with two-sided
bounds on the error, so that `tolerance` is a guarantee and not a stopping heuristic.

Policies are in log space. `soft_max`, `greedy` and `entropy` work on [..., A] along `axis`; nothing there overflows or
takes the logarithm of zero, and all stays exact as the temperature goes to zero: the largest entry is taken out before
exponentials, so that `|Q| / temperature` may be as large as floats allow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sparse

from implicitq.theory.mdp import FiniteMDP, check_temperature

DIRECT_STATES = 2000  # a dense system of this size takes 32 MB and a fraction of a second


class Optimum(NamedTuple):
    """The (regularised) optimal value [S], Q-value [S, A] and policy [S, A]."""

    value: np.ndarray
    q: np.ndarray
    policy: np.ndarray


class Iteration(NamedTuple):
    """What value iteration found: the value [S], a bound on its error, and the number of sweeps over P."""

    value: np.ndarray
    error: float
    sweeps: int


def soft_max(q: np.ndarray, temperature: float, axis: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """Lemma 1, read from right to left: Q = temperature ln pi + V.

    Returns V = temperature ln sum exp(Q / temperature), without the action axis, and the soft advantage
    temperature ln pi = Q - V, in the unit of rewards. At temperature 0 these are max Q and the advantage Q -
    max Q.
    """
    top = q.max(axis=axis, keepdims=True)
    advantage = q - top
    if temperature > 0:
        scaled = advantage / temperature
        excess = temperature * np.log(np.exp(scaled, out=scaled).sum(axis=axis, keepdims=True))
        advantage -= excess
        top += excess
    return np.squeeze(top, axis=axis), advantage


def greedy(q: np.ndarray, axis: int = -1) -> np.ndarray:
    """ln of the greedy policy: exact ties share the probability, as they do in the limit temperature -> 0."""
    best = q == q.max(axis=axis, keepdims=True)
    count = best.sum(axis=axis, keepdims=True)
    return np.where(best, -np.log(count), -np.inf)


def entropy(log_policy: np.ndarray, axis: int = -1) -> np.ndarray:
    """H(pi) = - <pi, ln pi>, with 0 ln 0 = 0."""
    finite = np.where(np.isneginf(log_policy), 0.0, log_policy)
    return -(np.exp(log_policy) * finite).sum(axis=axis)


def log_of(policy: Any, mdp: FiniteMDP) -> np.ndarray:
    """ln of a checked policy [..., S, A]."""
    policy = np.asarray(policy, dtype=np.float64)
    if policy.shape[-2:] != mdp.r.shape:
        raise ValueError(
            f"A policy must have shape [..., states, actions] = [..., {mdp.states}, {mdp.actions}], "
            f"got {list(policy.shape)}."
        )
    wrong = ~(np.abs(policy.sum(-1) - 1) <= 1e-8) | ~(policy >= 0).all(-1)
    if wrong.any():
        state = int(np.argwhere(wrong)[0][-1])
        raise ValueError(
            f"The policy in state {state} is not a distribution: its probabilities must be >= 0 and sum to 1."
        )
    with np.errstate(divide="ignore"):
        return np.log(policy)


def evaluate(mdp: FiniteMDP, policy: Any, *, temperature: float = 0.0, tolerance: float = 1e-12) -> np.ndarray:
    """V_pi^t, the value of a policy with entropy bonus: V = <pi, r + gamma P V> + t H(pi).

    `policy` is [S, A], or [..., S, A] for many at once; the result has the shape without the last axis.
    `tolerance` (relative to the size of V) matters beyond `DIRECT_STATES` states only.
    """
    temperature = check_temperature(temperature, zero=True)
    return evaluate_log(mdp, log_of(policy, mdp), temperature=temperature, tolerance=tolerance)


def evaluate_log(mdp: FiniteMDP, log_policy: np.ndarray, *, temperature: float, tolerance: float = 1e-12) -> np.ndarray:
    """`evaluate` for a policy given by its logarithm, which keeps the entropy exact at small temperatures."""
    lead = log_policy.shape[:-2]
    flat = log_policy.reshape(-1, mdp.states, mdp.actions)
    solve = _evaluate_directly if mdp.states <= DIRECT_STATES else _evaluate_iteratively
    values = [solve(mdp, one, temperature, tolerance) for one in flat]
    return np.stack(values).reshape(*lead, mdp.states) if values else np.empty((*lead, mdp.states))


def q_of(mdp: FiniteMDP, value: np.ndarray) -> np.ndarray:
    """Q = r + gamma P V for values [..., S]; the result is [..., S, A]."""
    flat = value.reshape(-1, mdp.states)
    q = mdp.backup(np.ascontiguousarray(flat.T))  # [S, A, B]
    return np.moveaxis(q, -1, 0).reshape(*value.shape, mdp.actions)


def induced(mdp: FiniteMDP, log_policy: np.ndarray, temperature: float) -> tuple[np.ndarray, Any]:
    """<pi, r> + t H(pi) [S] and the Markov chain P_pi [S, S] of a policy, dense or CSR like P."""
    policy = np.exp(log_policy)
    reward = (policy * mdp.r).sum(-1) + temperature * entropy(log_policy)
    if not mdp.is_sparse:
        return reward, np.einsum("sa,sat->st", policy, mdp.P)
    size = mdp.states * mdp.actions
    selection = sparse.csr_array(
        (policy.ravel(), np.arange(size), np.arange(0, size + 1, mdp.actions)), shape=(mdp.states, size)
    )
    selection.eliminate_zeros()
    return reward, sparse.csr_array(selection @ mdp.rows)


def _evaluate_directly(mdp: FiniteMDP, log_policy: np.ndarray, temperature: float, tolerance: float) -> np.ndarray:
    reward, chain = induced(mdp, log_policy, temperature)
    dense = chain.toarray() if mdp.is_sparse else chain
    return np.linalg.solve(np.eye(mdp.states) - mdp.discount * dense, reward)


def _evaluate_iteratively(mdp: FiniteMDP, log_policy: np.ndarray, temperature: float, tolerance: float) -> np.ndarray:
    reward, chain = induced(mdp, log_policy, temperature)
    scale = max(1.0, np.abs(reward).max() / (1.0 - mdp.discount))
    return _bounded_iteration(
        lambda v: reward + mdp.discount * (chain @ v), mdp.discount, np.zeros(mdp.states), tolerance * scale
    ).value


def _bounded_iteration(operator: Any, discount: float, value: np.ndarray, tolerance: float) -> Iteration:
    """Iterates a monotone operator with T(V + c) = T V + gamma c until the fixed point is known to
    `tolerance`.

    MacQueen's bounds: with d = T V - V, the fixed point lies between T V + gamma/(1-gamma) min d and T V +
    gamma/(1-gamma) max d. The midpoint is returned; its error is half the width, which shrinks with the span
    of d and so at least as fast as gamma^k, usually much faster.
    """
    factor = discount / (1.0 - discount)
    best, sweeps, patience = np.inf, 0, 0
    while True:
        following = operator(value)
        sweeps += 1
        change = following - value
        low, high = float(change.min()), float(change.max())
        error = 0.5 * factor * (high - low)
        value = following
        # rounding leaves a span of a few ulps: stop when it has ceased to shrink for a while
        patience = 0 if error < best else patience + 1
        best = min(best, error)
        if error <= tolerance or patience >= 100:
            return Iteration(value + 0.5 * factor * (low + high), error, sweeps)


def iterate_to_optimum(mdp: FiniteMDP, *, temperature: float = 0.0, tolerance: float = 1e-8) -> Iteration:
    """(Soft) value iteration until V is certainly within `tolerance` of the optimum; the solver for large MDPs.

    A tolerance finer than floats allow ends at what they allow: `error` always says what is certain.
    """
    temperature = check_temperature(temperature, zero=True)
    if not tolerance > 0:
        raise ValueError(f"tolerance must be a number > 0, got {tolerance!r}.")

    def operator(value: np.ndarray) -> np.ndarray:
        q = mdp.backup(value)
        return soft_max(q, temperature)[0] if temperature > 0 else _fast_max(q)

    return _bounded_iteration(operator, mdp.discount, np.zeros(mdp.states), tolerance)


def _fast_max(q: np.ndarray) -> np.ndarray:
    """max over few actions: pairwise over columns is several times faster than a short reduction."""
    if q.shape[1] > 32:
        return q.max(axis=1)
    best = q[:, 0].copy()
    for action in range(1, q.shape[1]):
        np.maximum(best, q[:, action], out=best)
    return best


def optimum(mdp: FiniteMDP, temperature: float = 0.0) -> Optimum:
    """The optimum (value, q, policy) of the MDP with entropy bonus `temperature` (0: the plain optimum).

    Small MDPs by (soft) policy iteration, which ends at the exact solution; large ones by value iteration
    with a guaranteed error of 1e-10 of the largest possible value. At temperature 0 tied actions share the
    probability.
    """
    temperature = check_temperature(temperature, zero=True)
    if mdp.states <= DIRECT_STATES:
        value = _policy_iteration(mdp, temperature)
    else:
        scale = max(1.0, (mdp.reward_bound + temperature * np.log(mdp.actions)) / (1.0 - mdp.discount))
        value = iterate_to_optimum(mdp, temperature=temperature, tolerance=1e-10 * scale).value
    q = mdp.backup(value)
    if temperature > 0:
        value, advantage = soft_max(q, temperature)
        return Optimum(value, q, np.exp(advantage / temperature))
    value = q.max(axis=-1)
    slack = 1e-11 * max(1.0, float(np.abs(value).max())) / (1.0 - mdp.discount)  # rounding must not break a tie
    return Optimum(value, q, np.exp(greedy(np.minimum(q, value[:, None] - slack))))


def _policy_iteration(mdp: FiniteMDP, temperature: float) -> np.ndarray:
    """Values rise from policy to policy; the end is reached when they rise by no more than rounding."""
    value = evaluate_log(mdp, np.full(mdp.r.shape, -np.log(mdp.actions)), temperature=temperature)
    while True:
        q = mdp.backup(value)
        log_policy = soft_max(q, temperature)[1] / temperature if temperature > 0 else _first_best(q)
        better = evaluate_log(mdp, log_policy, temperature=temperature)
        rounding = 16 * np.finfo(float).eps * max(1.0, float(np.abs(better).max())) / (1.0 - mdp.discount)
        if float((better - value).max()) <= rounding:
            return np.maximum(value, better)
        value = better


def _first_best(q: np.ndarray) -> np.ndarray:
    """ln of a deterministic greedy policy, the first of the best actions."""
    log_policy = np.full(q.shape, -np.inf)
    np.put_along_axis(log_policy, q.argmax(axis=-1)[:, None], 0.0, axis=-1)
    return log_policy
