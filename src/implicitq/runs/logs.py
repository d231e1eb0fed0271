"""The logs of a run beside its evaluations: metrics.csv, and timing.csv with the clock that fills it. Needs no JAX."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from implicitq import hindsight
from implicitq.runs.files import read_bytes
from implicitq.runs.layout import METRICS, TIMING
from implicitq.types import Array, InputError

CLOCKS = ("step", "wall_seconds", "cpu_seconds")
"""The columns of timing.csv."""


class ClockRow(NamedTuple):
    """Seconds of training up to a step."""

    step: int
    wall: float
    cpu: float


class Clock:
    """Wall and CPU seconds of the run, over all its sessions."""

    def __init__(self, wall: float, cpu: float, runs: int = 1) -> None:
        """`runs` that share the process share its CPU seconds evenly."""
        self._runs = runs
        self._wall, self._cpu = wall - time.monotonic(), cpu - time.process_time() / runs

    def read(self) -> tuple[float, float]:
        return round(self._wall + time.monotonic(), 3), round(self._cpu + time.process_time() / self._runs, 3)


def read_clocks(content: bytes) -> tuple[list[ClockRow], bool]:
    """All rows of a timing.csv that can be read, and whether that is all of it, but for a last line that was cut."""
    header, *lines = content.split(b"\n")[:-1] or [b""]  # a sudden death may have cut the last one
    rows = [_clock_row(line) for line in lines]
    return [row for row in rows if row is not None], header == ",".join(CLOCKS).encode() and None not in rows


def _clock_row(line: bytes) -> ClockRow | None:
    try:
        step, wall, cpu = line.split(b",")
        row = ClockRow(int(step), float(wall), float(cpu))
    except ValueError:
        return None
    return row if all(0 <= value < math.inf for value in row) else None


def read_metrics(folder: Path) -> dict[str, Array]:
    """The columns of metrics.csv by name, `step` first; a last row without its end is left out."""
    try:
        header, *rows = read_bytes(folder / METRICS).split(b"\n")[:-1] or [b""]
        names = header.decode().split(",")
        cells = np.loadtxt(rows, delimiter=",", comments=None, ndmin=2) if rows else np.zeros((0, len(names)))
    except FileNotFoundError:
        raise InputError(f"it has no {METRICS}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{METRICS} cannot be read: {error}") from None
    if names[0] != "step" or len(set(names)) < len(names) or cells.shape[1] != len(names):
        raise InputError(f"{METRICS} is not a table that begins with step")
    return dict(zip(names, cells.T, strict=True))


def first_implausible(folder: Path) -> str | None:
    """A sentence on where values first exceed what rewards can explain; None if they do not, or it is unknown."""
    try:
        return implausible_in(read_metrics(folder))
    except InputError:
        return None


def implausible_in(table: Mapping[str, Array]) -> str | None:
    """As `first_implausible`, for the columns of a metrics.csv."""
    if "value" not in table or hindsight.PLAUSIBLE not in table:
        return None
    rows = np.flatnonzero(hindsight.is_implausible(table["value"], table[hindsight.PLAUSIBLE]))
    if not len(rows):
        return None
    step, value, plausible = (table[name][rows[0]] for name in ("step", "value", hindsight.PLAUSIBLE))
    return f"values diverged: {value:,.0f} at step {step:,.0f}, where rewards explain at most {plausible:,.0f}"


def wall_seconds(folder: Path) -> dict[int, float]:
    """Wall time of training up to every step that has one; empty if the clocks cannot be read."""
    try:
        rows, _ = read_clocks(read_bytes(folder / TIMING))
    except OSError:
        return {}
    return {row.step: row.wall for row in reversed(rows)}  # of two rows of a step the first counts
