"""A finite Markov decision process: transition probabilities, rewards, discount.

Shapes: S states, A actions, B independent copies (noise seeds). Probabilities are kept either dense, as [S,
A, S], or sparse, as a CSR matrix [S * A, S] whose row `s * A + a` belongs to state s and action a.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
import scipy.sparse as sparse

ROW_SUM_TOLERANCE = 1e-8  # float32 tables pass after one renormalisation by their owner; a missing outcome does not


@dataclass(frozen=True, eq=False)
class FiniteMDP:
    """P(s' | s, a), r(s, a) and the discount gamma, checked once and read-only afterwards.

    `P` is an array [S, A, S], or any SciPy sparse matrix [S * A, S] for large problems; `r` is an array [S, A].
    Everything is float64. Equality is identity: two MDPs are compared by their arrays, if at all.
    """

    P: Any  # [S, A, S] dense or [S * A, S] sparse
    r: np.ndarray  # [S, A]
    discount: float  # gamma

    def __post_init__(self) -> None:
        rewards = _rewards(self.r)
        object.__setattr__(self, "r", rewards)
        object.__setattr__(self, "P", _transitions(self.P, *rewards.shape))
        object.__setattr__(self, "discount", _discount(self.discount))

    @property
    def states(self) -> int:
        """S, the number of states."""
        return self.r.shape[0]

    @property
    def actions(self) -> int:
        """A, the number of actions."""
        return self.r.shape[1]

    @property
    def is_sparse(self) -> bool:
        return sparse.issparse(self.P)

    @property
    def reward_bound(self) -> float:
        """r_max, the largest absolute reward."""
        return float(np.abs(self.r).max())

    @cached_property
    def rows(self) -> Any:
        """P as a matrix [S * A, S], dense or CSR as it was given."""
        return self.P if self.is_sparse else self.P.reshape(self.states * self.actions, self.states)

    @cached_property
    def csr(self) -> sparse.csr_array:
        """P as a CSR matrix [S * A, S] without stored zeros."""
        return self.rows if self.is_sparse else sparse.csr_array(self.rows)

    def expect(self, values: np.ndarray) -> np.ndarray:
        """P V: E[V(s') | s, a]. `values` is [S] or [S, B]; the result is [S, A] or [S, A, B]."""
        return (self.rows @ values).reshape(self.states, self.actions, *values.shape[1:])

    def backup(self, values: np.ndarray) -> np.ndarray:
        """r + gamma P V, as [S, A] or [S, A, B]."""
        q = self.expect(values)
        q *= self.discount
        q += self.r.reshape(self.r.shape + (1,) * (values.ndim - 1))
        return q


def _rewards(r: Any) -> np.ndarray:
    rewards = np.array(r, dtype=np.float64, order="C")
    if rewards.ndim != 2 or 0 in rewards.shape:
        raise ValueError(f"r must have shape [states, actions], none of them 0, got {list(rewards.shape)}.")
    bad = ~np.isfinite(rewards)
    if bad.any():
        state, action = np.argwhere(bad)[0]
        raise ValueError(f"r of state {state}, action {action} is {rewards[state, action]}; rewards must be finite.")
    rewards.flags.writeable = False
    return rewards


def _transitions(P: Any, states: int, actions: int) -> Any:
    """The checked, read-only copy of P: float64, dense [S, A, S] or CSR [S * A, S]."""
    if sparse.issparse(P):
        if P.shape != (states * actions, states):
            raise ValueError(
                f"Sparse P must have shape [states * actions, states] = {[states * actions, states]} "
                f"to fit r, got {list(P.shape)}."
            )
        rows = sparse.csr_array(P, dtype=np.float64, copy=True)
        rows.sum_duplicates()
        rows.eliminate_zeros()
        _check_probabilities(rows.data, lambda i: int(np.searchsorted(rows.indptr, i, "right")) - 1, rows, actions)
        rows.data.flags.writeable = False
        return rows
    dense = np.array(P, dtype=np.float64, order="C")
    if dense.shape != (states, actions, states):
        raise ValueError(
            f"P must have shape [states, actions, states] = {[states, actions, states]} to fit r, "
            f"got {list(dense.shape)}."
        )
    rows = dense.reshape(states * actions, states)
    _check_probabilities(rows.ravel(), lambda i: i // states, rows, actions)
    dense.flags.writeable = False
    return dense


def _check_probabilities(data: np.ndarray, row_of: Callable[[int], int], rows: Any, actions: int) -> None:
    """Raises a ValueError that names the first state and action with an impossible distribution."""
    bad = ~(data >= 0)  # negative or NaN; an infinite entry shows in the sum
    if bad.any():
        entry = int(np.argmax(bad))
        state, action = divmod(row_of(entry), actions)
        raise ValueError(f"P of state {state}, action {action} contains {data[entry]}; probabilities must be >= 0.")
    sums = np.asarray(rows.sum(axis=1)).ravel()
    bad = ~(np.abs(sums - 1.0) <= ROW_SUM_TOLERANCE)
    if bad.any():
        row = int(np.argmax(bad))
        state, action = divmod(row, actions)
        raise ValueError(f"P of state {state}, action {action} sums to {sums[row]:.12g}; it must sum to 1.")


def _discount(discount: Any) -> float:
    if not isinstance(discount, Real) or isinstance(discount, bool) or not 0.0 <= float(discount) < 1.0:
        raise ValueError(f"discount must be a number in [0, 1), got {discount!r}.")
    return float(discount)


def check_count(name: str, value: Any, *, least: int) -> int:
    """An integer of at least `least`, or a ValueError."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value!r}.")
    return int(value)


def check_number(name: str, value: Any, accepted: str, test: Callable[[Any], bool]) -> float:
    """A finite number that passes `test`, or a ValueError that says what is accepted."""
    if not isinstance(value, Real) or isinstance(value, bool) or not np.isfinite(float(value)) or not test(value):
        raise ValueError(f"{name} must be {accepted}, got {value!r}.")
    return float(value)


def check_temperature(value: Any, *, name: str = "temperature", zero: bool = False) -> float:
    """temperature > 0, or >= 0 where a zero makes sense."""
    if zero:
        return check_number(name, value, "a finite number >= 0", lambda x: x >= 0)
    return check_number(name, value, "a finite number > 0", lambda x: x > 0)


def check_alpha(value: Any) -> float:
    return check_number("alpha", value, "a number in [0, 1]", lambda x: 0 <= x <= 1)
