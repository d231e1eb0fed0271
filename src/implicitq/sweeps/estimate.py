"""How long a sweep will take, from measured rates."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from implicitq.runs.layout import progress_of
from implicitq.sweeps.studies import Plan, PlannedRun
from implicitq.types import InputError

_STEPS, _REPEATS = 200, 2  # enough for an estimate
_LEAST_REPLAY = 2_000  # what measuring fills


class Rate(NamedTuple):
    steps_per_second: float
    source: str


def rates(out: Path, plan: Plan, given: float | None, tell: Callable[[str], None]) -> dict[str, Rate]:
    """Steps per second of every algorithm on one core: given, found in clocks of runs that exist, or measured."""
    if given is not None and not given > 0:
        raise InputError(f"rate must be a positive number, got {given}")
    found: dict[str, Rate] = {}
    for algorithm in dict.fromkeys(run.algorithm for run in plan.runs):
        runs = [run for run in plan.runs if run.algorithm == algorithm]
        if given is not None:
            found[algorithm] = Rate(given, "given by --rate")
            continue
        clocks = [p.rate for p in (progress_of(out / run.folder) for run in runs) if p.rate is not None]
        if clocks:
            found[algorithm] = Rate(float(np.median(clocks)), f"median of {len(clocks)} run(s) in {out}")
            continue
        tell(f"measuring {algorithm} on {runs[0].env}")
        found[algorithm] = Rate(_measure(runs[0]), f"measured now on {runs[0].env}, without evaluations")
    return found


def seconds(runs: list[PlannedRun], known: dict[str, Rate], workers: int) -> float:
    """Wall time, if the workers share the work evenly."""
    return sum(run.config().steps / known[run.algorithm].steps_per_second for run in runs) / min(
        workers, len(runs) or 1
    )


def _measure(run: PlannedRun) -> float:
    before: set[int] | None = None
    if hasattr(os, "sched_getaffinity"):  # as a worker would be
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(before)})
    try:
        from implicitq.bench import measure

        config = dataclasses.replace(run.config(), replay_size=max(run.config().replay_size, _LEAST_REPLAY))
        done: dict[str, Any] = measure(config, steps=_STEPS, repeats=_REPEATS)
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)
    return float(done["steps_per_second"])
