"""Log-space arithmetic over actions; nothing here overflows or takes the logarithm of zero.

Every function works on [..., A] along `axis` and stays exact as the temperature goes to zero: the largest
entry is taken out before exponentials, so that `|Q| / temperature` may be as large as floats allow.
"""

from __future__ import annotations

import numpy as np


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
