"""Errors eps_k(s, a) injected into a scheme: none, i.i.d. noise, sampled transitions, an adversary, or given
ones.

Eq. of App. A.4: temperature ln pi_{k+2} + V_{k+1} = r + alpha temperature ln pi_{k+1} + gamma P V_k +
eps_{k+1}. Shapes: S states, A actions, B seeds; the seed is the last axis, so that reductions over actions
stay contiguous. Each seed owns a generator: the errors of seed 3 are the same alone and among fifty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import scipy.sparse as sparse

from implicitq.theory.mdp import FiniteMDP, check_count, check_number
from implicitq.theory.solve import optimum

NARROW = 16  # rows of P with at most this many successors are sampled by counting


class Step(NamedTuple):
    """A step that asks for errors: the values whose expectations P V it takes, and each seed's generator."""

    mdp: FiniteMDP
    number: int  # counts from 1
    generators: Sequence[np.random.Generator]  # [B]
    values: Sequence[np.ndarray]  # [S, B] each

    @property
    def shape(self) -> tuple[int, int, int]:
        """[S, A, B], the shape of the errors."""
        return self.mdp.states, self.mdp.actions, len(self.generators)


class ErrorSource(Protocol):
    """Draws the errors of one step."""

    def draw(self, step: Step) -> list[np.ndarray]:
        """eps_{step.number} [S, A, B] for each of `step.values`, all from the same randomness."""
        ...


class ErrorModel(Protocol):
    """A description of errors; `prepare` binds it to an MDP before the first step."""

    def prepare(self, mdp: FiniteMDP, iterations: int) -> ErrorSource: ...


@dataclass(frozen=True)
class GaussianNoise:
    """Independent zero-mean normal errors of standard deviation `scale`, the same whatever the values are."""

    scale: float

    def __post_init__(self) -> None:
        check_number("scale", self.scale, "a finite number >= 0", lambda x: x >= 0)

    def prepare(self, mdp: FiniteMDP, iterations: int) -> ErrorSource:
        return self

    def draw(self, step: Step) -> list[np.ndarray]:
        states, actions, batch = step.shape
        noise = np.empty((batch, states, actions))
        for one, generator in zip(noise, step.generators, strict=True):
            generator.standard_normal(out=one)
        noise *= self.scale
        return [np.moveaxis(noise, 0, -1)] * len(step.values)


@dataclass(frozen=True)
class SampledTransitions:
    """P V becomes the mean of V over `samples` next states, drawn from a generative model for every (s, a).

    eps = gamma (mean_i V(s'_i) - P V): zero-mean given the past, and bounded by gamma times the span of V.
    """

    samples: int = 1

    def __post_init__(self) -> None:
        check_count("samples", self.samples, least=1)

    def prepare(self, mdp: FiniteMDP, iterations: int) -> ErrorSource:
        rows = mdp.csr
        lengths = np.diff(rows.indptr)
        row = np.repeat(np.arange(len(lengths)), lengths)
        place = np.arange(rows.nnz) - rows.indptr[row]  # of an entry within its row
        total = np.concatenate([[0.0], np.cumsum(rows.data)])
        cumulative = total[1:] - total[rows.indptr[row]]
        last = place == lengths[row] - 1
        if lengths.max() <= NARROW:
            levels = np.full((lengths.max() - 1, len(lengths)), np.inf)
            levels[place[~last], row[~last]] = cumulative[~last]
            return _GenerativeModel(self.samples, rows, levels, np.empty(0))
        # one sorted table for all rows: row i covers (i, i + 1], so that a single search serves every (s, a)
        return _GenerativeModel(self.samples, rows, None, row + np.where(last, 1.0, cumulative))


@dataclass(frozen=True, eq=False)
class _GenerativeModel:
    samples: int
    rows: sparse.csr_array  # [S * A, S]
    levels: np.ndarray | None  # [N - 1, S * A] cumulative probabilities of narrow rows, padded by infinity
    table: np.ndarray  # [non-zeros] cumulative probabilities plus the row's number; empty for narrow rows

    def next_states(self, step: Step) -> np.ndarray:
        """One s' for every state, action and seed, [S * A, B]."""
        size = step.mdp.states * step.mdp.actions
        points = np.empty((len(step.generators), size))
        for one, generator in zip(points, step.generators, strict=True):
            generator.random(out=one)
        if self.levels is not None:  # counting a few comparisons is much faster than searching
            passed = np.zeros(points.shape, dtype=np.uint8)
            for level in self.levels:
                passed += points >= level
            entries = np.asarray(self.rows.indptr)[:-1] + passed
        else:
            points += np.arange(size)
            # adding the row's number may round 0.99... up to the next row
            np.minimum(points, np.nextafter(np.arange(1.0, size + 1), 0), out=points)
            entries = np.searchsorted(self.table, points, side="right")
        return np.asarray(self.rows.indices)[entries].T

    def draw(self, step: Step) -> list[np.ndarray]:
        states, actions, batch = step.shape
        totals = [np.zeros((states * actions, batch)) for _ in step.values]
        for _ in range(self.samples):
            following = self.next_states(step)
            for total, value in zip(totals, step.values, strict=True):
                total += np.take_along_axis(value, following, axis=0)
        return [
            step.mdp.discount * (total.reshape(step.shape) / self.samples - step.mdp.expect(value))
            for total, value in zip(totals, step.values, strict=True)
        ]


@dataclass(frozen=True)
class Adversary:
    """The persistent worst case: at every step optimal actions lose `scale` and all others gain it.

    Such errors do not average out: the average of the errors is as large as each of them.
    """

    scale: float

    def __post_init__(self) -> None:
        check_number("scale", self.scale, "a finite number >= 0", lambda x: x >= 0)

    def prepare(self, mdp: FiniteMDP, iterations: int) -> ErrorSource:
        errors = np.where(optimum(mdp).policy > 0, -self.scale, self.scale)
        return _Constant(errors)


@dataclass(frozen=True, eq=False)
class _Constant:
    errors: np.ndarray  # [S, A]

    def draw(self, step: Step) -> list[np.ndarray]:
        return [np.broadcast_to(self.errors[:, :, None], step.shape)] * len(step.values)


@dataclass(frozen=True, eq=False)
class GivenErrors:
    """Errors chosen beforehand, [iterations, S, A]; row j is eps_{j+1}, the error of the (j + 1)-th step."""

    errors: np.ndarray

    def prepare(self, mdp: FiniteMDP, iterations: int) -> ErrorSource:
        errors = np.asarray(self.errors, dtype=np.float64)
        wanted = (iterations, mdp.states, mdp.actions)
        if errors.shape != wanted:
            raise ValueError(
                f"errors must have shape [iterations, states, actions] = {list(wanted)}, got {list(errors.shape)}."
            )
        bad = ~np.isfinite(errors)
        if bad.any():
            step, state, action = np.argwhere(bad)[0]
            raise ValueError(f"errors of step {step + 1}, state {state}, action {action} are not finite.")
        return _Listed(errors)


@dataclass(frozen=True, eq=False)
class _Listed:
    errors: np.ndarray  # [K, S, A]

    def draw(self, step: Step) -> list[np.ndarray]:
        return _Constant(self.errors[step.number - 1]).draw(step)
