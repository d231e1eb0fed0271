"""Theorem 1 and Theorem 2 as computations: both sides, per iteration.

Record index: after k steps with errors eps_1 .. eps_k the policy is policies[k], the paper's pi_{k+1}.
Everything here is per k = 1 .. K for that policy. The remainders are derived in docs/theory.md; with zero
errors the paper's main terms are zero, so the main term alone is not a bound at any finite k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitq.theory.errors import ErrorModel
from implicitq.theory.mdp import FiniteMDP
from implicitq.theory.schemes import iq_dp, md_vi
from implicitq.theory.solve import evaluate_log, optimum, q_of
from implicitq.theory.trace import Seeds, Trace


@dataclass(frozen=True, eq=False)
class Equivalence:
    """Theorem 1, per k = 0 .. K: the largest differences between IQ-DP and MD-VI, and their allowance."""

    iq: Trace
    md: Trace
    policy_difference: np.ndarray  # [K + 1] max |pi_IQ - pi_MD|
    value_difference: np.ndarray  # [K + 1] max |V_IQ - V_MD|
    q_difference: np.ndarray  # [K + 1] the Q-form of App. A.4
    allowance: np.ndarray  # [K + 1] 1e-10 plus the rounding that |Q| / temperature forces


@dataclass(frozen=True, eq=False)
class ErrorBound:
    """Theorem 2, per k = 1 .. K; the seed axis [B] is there only if the trace has one."""

    iterations: np.ndarray  # [K]
    gap: np.ndarray  # [K, (B)] left side: max |Q_* - Q_pi|, regularised at (1 - alpha) temperature
    main: np.ndarray  # [K, (B)] the paper's main term
    remainder: np.ndarray  # [K, (B)] what o(1/k) or O(1/k) stands for

    @property
    def bound(self) -> np.ndarray:
        """[K, (B)] the right side: main term and remainder."""
        return self.main + self.remainder


def theorem_1(
    mdp: FiniteMDP,
    *,
    alpha: float,
    temperature: float,
    iterations: int,
    errors: ErrorModel | None = None,
    seeds: Seeds = None,
) -> Equivalence:
    """IQ-DP(alpha, temperature) beside MD-VI(kl = alpha temperature, entropy = (1 - alpha) temperature)."""
    settings: dict[str, Any] = {"iterations": iterations, "errors": errors, "seeds": seeds}
    iq = iq_dp(mdp, alpha=alpha, temperature=temperature, **settings)
    md = md_vi(mdp, kl=alpha * temperature, entropy=(1.0 - alpha) * temperature, **settings)

    def largest(difference: np.ndarray) -> np.ndarray:
        return np.abs(difference).reshape(len(difference), -1).max(axis=1)

    return Equivalence(
        iq=iq,
        md=md,
        policy_difference=largest(iq.policies - md.policies),
        value_difference=largest(iq.values - md.values),
        q_difference=largest(regularised_q(iq) - md.q_values),
        allowance=_allowance(mdp, iq),
    )


def regularised_q(trace: Trace) -> np.ndarray:
    """App. A.4: Q_k = temperature ln pi_{k+1} - alpha temperature ln pi_k + V_k from an IQ-DP record, with
    pi_0 = pi_1.

    Equals MD-VI's Q_k at every k; needs a record of every iteration.
    """
    _need_all(trace)
    before = np.concatenate([trace.log_policies[:1], trace.log_policies[:-1]])
    return trace.temperature * (trace.log_policies - trace.alpha * before) + trace.values[..., None]


def _allowance(mdp: FiniteMDP, trace: Trace) -> np.ndarray:
    """1e-10 plus rounding: an error of eps |Q| in a Q-value moves ln pi by eps |Q| / temperature.

    Each step adds its own rounding, alpha times the previous one stays, and errors of V come back by the
    factor 1 / (1 - gamma).
    """
    size = max(1.0, float(np.abs(trace.q_values).max()))
    steps = np.cumsum(trace.alpha ** np.arange(len(trace.values)))
    return 1e-10 + 4 * np.finfo(float).eps * size / min(trace.temperature, 1.0) * steps / (1.0 - mdp.discount)


def theorem_2(mdp: FiniteMDP, trace: Trace) -> ErrorBound:
    """Both sides of Theorem 2 for an IQ-DP or MD-VI record that kept every iteration, for any alpha in [0, 1]."""
    _need_all(trace)
    if trace.temperature <= 0 or len(trace.iterations) < 2:
        raise ValueError(f"Theorem 2 needs a record of IQ-DP or MD-VI with at least one step, got {trace.scheme}.")
    main, remainder = (_averaged if trace.alpha == 1.0 else _discounted)(mdp, trace)
    gap = policy_gap(mdp, trace.log_policies[1:], temperature=(1.0 - trace.alpha) * trace.temperature)
    return ErrorBound(trace.iterations[1:], gap, main, np.broadcast_to(remainder, main.shape))


def policy_gap(mdp: FiniteMDP, log_policies: np.ndarray, *, temperature: float = 0.0) -> np.ndarray:
    """What policies [..., S, A] lose: the largest entry of `|Q_* - Q_pi|`, regularised alike, by exact evaluation."""
    best = optimum(mdp, temperature).value
    worth = evaluate_log(mdp, log_policies, temperature=temperature)
    return np.abs(q_of(mdp, best) - q_of(mdp, worth)).max(axis=(-2, -1))


def _error_norms(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """eps_1 .. eps_K [K, ..., S, A], zero where none were injected, and k = 1 .. K."""
    errors = np.zeros_like(trace.q_values[1:]) if trace.errors is None else trace.errors[1:]
    return errors, np.arange(1, len(errors) + 1)


def _averaged(mdp: FiniteMDP, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """alpha = 1: 2/(1-gamma) |mean eps| + gamma/(1-gamma) (temperature ln A + 2 |V_k|) / k."""
    errors, k = _error_norms(trace)
    k = k.reshape(-1, *(1,) * (trace.values.ndim - 2))  # [K, (1)]
    total = np.abs(np.cumsum(errors, axis=0)).max(axis=(-2, -1))
    gamma = mdp.discount
    main = 2.0 / (1.0 - gamma) * total / k
    size = trace.temperature * np.log(mdp.actions) + 2.0 * np.abs(trace.values[1:]).max(axis=-1)
    return main, gamma / (1.0 - gamma) * size / k


def _discounted(mdp: FiniteMDP, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """alpha < 1: 2/(1-gamma) sum_j gamma^{k-j} |E_j| with E_j = (1-alpha) sum_i alpha^{j-i} eps_i, plus
    2 gamma/(1-gamma) times the start-up.
    """
    errors, _ = _error_norms(trace)
    alpha, gamma = trace.alpha, mdp.discount
    averaged, main = np.zeros_like(errors[0]), np.zeros(trace.values.shape[1:-1])
    mains = []
    for error in errors:
        averaged = alpha * averaged + (1.0 - alpha) * error
        main = gamma * main + np.abs(averaged).max(axis=(-2, -1))
        mains.append(main)
    shape = (-1, *(1,) * (trace.values.ndim - 2))
    rest = _start_up(mdp, alpha, trace.temperature, len(errors))[1:]
    return 2.0 / (1.0 - gamma) * np.stack(mains), 2.0 * gamma / (1.0 - gamma) * np.reshape(rest, shape)


def _start_up(mdp: FiniteMDP, alpha: float, temperature: float, iterations: int) -> np.ndarray:
    """How far h_k can be from Q_* without errors, alpha < 1: [K + 1], k = 0 first. With t = (1-alpha) temperature,

    gamma^k |Q_*^t| + sum_j gamma^{k-j} (alpha^j r_max + gamma alpha^{j-1} t ln A).
    """
    gamma, entropy = mdp.discount, (1.0 - alpha) * temperature
    found = [float(np.abs(optimum(mdp, entropy).q).max())]
    for j in range(1, iterations + 1):
        fading = alpha**j * mdp.reward_bound + gamma * alpha ** (j - 1) * entropy * np.log(mdp.actions)
        found.append(gamma * found[-1] + fading)
    return np.array(found)


def value_bound(mdp: FiniteMDP, *, alpha: float, temperature: float, iterations: int) -> np.ndarray:
    """How far V_k of IQ-DP without errors can be from the regularised optimum, for alpha < 1: [K], k = 1 first.

    With W_k as in docs/theory.md, V_k = (W_k - alpha W_{k-1}) / (1 - alpha), and
    |W_k - V_*| <= |h_k - Q_*| + alpha^k t ln A.
    """
    entropy = (1.0 - alpha) * temperature
    k = np.arange(iterations + 1)
    apart = _start_up(mdp, alpha, temperature, iterations) + float(alpha) ** k * entropy * np.log(mdp.actions)
    return (apart[1:] + alpha * apart[:-1]) / (1.0 - alpha)


def _need_all(trace: Trace) -> None:
    if not np.array_equal(trace.iterations, np.arange(len(trace.iterations))):
        raise ValueError('The record must hold every iteration from 0 on: run the scheme with keep="all".')
