"""Running a scheme: the loop over iterations, the record it leaves, and the seeds it runs over.

Which policy belongs to which value. The paper iterates on the pair (pi_{k+1}, V_k); the record stores that
pair under one index:

    values[k]   = V_k        (values[0] = 0)
    policies[k] = pi_{k+1}   (policies[0] = pi_1, uniform)
    errors[k]   = eps_k      (errors[0] = 0: there was no step yet)

So one step of Eq. 3 takes record k to record k + 1, and policies[k] is the policy that k steps, with errors
eps_1 .. eps_k, have produced. It is the pi_{k+1} of the text around Theorem 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from implicitq.theory.errors import ErrorModel, Step
from implicitq.theory.mdp import FiniteMDP, check_count

Keep = str | int | Sequence[int]
Seeds = int | Iterable[int] | None
Noise = Callable[..., list[np.ndarray] | None]


class State(NamedTuple):
    """What a scheme carries from step to step; B seeds on the last axis."""

    value: np.ndarray  # [S, B] V_k
    q: np.ndarray  # [S, A, B] the scheme's own Q-value
    memory: np.ndarray  # [S, A, B] what else the scheme needs: ln pi, a soft advantage, the previous Q


@dataclass(frozen=True, eq=False)
class Trace:
    """The record of a run. K rows are kept; the seed axis [B] is there only if seeds were asked for."""

    scheme: str
    alpha: float  # weight of the KL term within the temperature
    temperature: float  # tau, 0 for schemes without one
    iterations: np.ndarray  # [K] the k of each row
    values: np.ndarray  # [K, (B,) S]
    log_policies: np.ndarray  # [K, (B,) S, A]
    q_values: np.ndarray  # [K, (B,) S, A] the scheme's own Q: see each scheme
    errors: np.ndarray | None  # [K, (B,) S, A] eps_k, recorded when every iteration is kept

    @cached_property
    def policies(self) -> np.ndarray:
        """[K, (B,) S, A], the exponential of `log_policies`."""
        return np.exp(self.log_policies)


@dataclass(frozen=True)
class Scheme:
    """A scheme as two functions over a `State`."""

    name: str
    alpha: float
    temperature: float
    start: Callable[[int], State]  # number of seeds -> state at k = 0
    step: Callable[[int, State, Noise], State]  # (k + 1, state k, noise) -> state k + 1
    log_policy: Callable[[State], np.ndarray]  # state k -> ln pi_{k+1}


def run(
    mdp: FiniteMDP, scheme: Scheme, *, iterations: int, errors: ErrorModel | None, seeds: Seeds, keep: Keep
) -> Trace:
    """Runs `scheme` from V_0 = 0 and the uniform policy for `iterations` steps."""
    iterations = check_count("iterations", iterations, least=0)
    generators, single = _generators(seeds)
    rows = _rows(keep, iterations)
    source = None if errors is None else errors.prepare(mdp, iterations)
    recorder = _Recorder(scheme, mdp, rows, len(generators), with_errors=source is not None and keep == "all")
    state, drawn = scheme.start(len(generators)), None
    recorder.store(0, state, drawn)
    for k in range(1, iterations + 1):
        drawn = []

        def noise(*values: np.ndarray, k: int = k, drawn: list[np.ndarray] = drawn) -> list[np.ndarray] | None:
            if source is None:
                return None
            drawn.extend(source.draw(Step(mdp, k, generators, values)))
            return drawn

        state = scheme.step(k, state, noise)
        recorder.store(k, state, drawn[0] if drawn else None)
    return recorder.trace(single)


class _Recorder:
    """Writes the kept iterations into arrays allocated once."""

    def __init__(self, scheme: Scheme, mdp: FiniteMDP, rows: np.ndarray, batch: int, *, with_errors: bool) -> None:
        self.scheme, self.rows = scheme, rows
        self.index = {int(k): i for i, k in enumerate(rows)}
        shape = (len(rows), mdp.states, mdp.actions, batch)
        self.values = np.zeros((len(rows), mdp.states, batch))
        self.log_policies, self.q_values = np.zeros(shape), np.zeros(shape)
        self.errors = np.zeros(shape) if with_errors else None

    def store(self, k: int, state: State, error: np.ndarray | None) -> None:
        row = self.index.get(k)
        if row is None:
            return
        self.values[row] = state.value
        self.q_values[row] = state.q
        self.log_policies[row] = self.scheme.log_policy(state)
        if self.errors is not None and error is not None:
            self.errors[row] = error

    def trace(self, single: bool) -> Trace:
        def shaped(array: np.ndarray) -> np.ndarray:
            return array[..., 0] if single else np.moveaxis(array, -1, 1)

        return Trace(
            scheme=self.scheme.name,
            alpha=self.scheme.alpha,
            temperature=self.scheme.temperature,
            iterations=self.rows,
            values=shaped(self.values),
            log_policies=shaped(self.log_policies),
            q_values=shaped(self.q_values),
            errors=None if self.errors is None else shaped(self.errors),
        )


def _generators(seeds: Seeds) -> tuple[list[np.random.Generator], bool]:
    """One generator per seed, and whether the seed axis is left out of the record."""
    if seeds is None:
        return [np.random.default_rng(0)], True
    if isinstance(seeds, (int, np.integer)):
        seeds = range(check_count("seeds", seeds, least=1))
    numbers = [check_count("seeds", seed, least=0) for seed in seeds]
    if not numbers:
        raise ValueError("seeds must be None, a number of seeds >= 1 or a list of seeds, got an empty list.")
    return [np.random.default_rng(seed) for seed in numbers], False


def _rows(keep: Keep, iterations: int) -> np.ndarray:
    """The iterations to record: all, the last, every stride-th and the last, or the listed ones."""
    accepted = 'keep must be "all", "last", a stride >= 1 or increasing iteration numbers'
    if isinstance(keep, str):
        if keep not in ("all", "last"):
            raise ValueError(f"{accepted}, got {keep!r}.")
        return np.arange(0 if keep == "all" else iterations, iterations + 1)
    if isinstance(keep, (int, np.integer)):
        stride = check_count("keep", keep, least=1)
        return np.unique(np.append(np.arange(0, iterations + 1, stride), iterations))
    rows = np.array(list(keep))
    if (
        rows.size == 0
        or rows.dtype.kind not in "iu"
        or (np.diff(rows) <= 0).any()
        or rows[0] < 0
        or rows[-1] > iterations
    ):
        raise ValueError(f"{accepted} up to {iterations}, got {keep!r}.")
    return rows
