"""What metrics.csv and timing.csv of a run folder say, whole or not. Needs no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from implicitq import hindsight
from implicitq.runs import timing
from implicitq.runs.layout import METRICS, TIMING
from implicitq.runs.strangers import read_bytes
from implicitq.types import Array, InputError


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
    """Where the values of a run first left what rewards can explain, in words; None if they did not, or who knows."""
    try:
        return implausible_in(read_metrics(folder))
    except InputError:
        return None


def implausible_in(table: Mapping[str, Array]) -> str | None:
    """The same of the columns of metrics.csv."""
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
        rows, _ = timing.read_rows(read_bytes(folder / TIMING))
    except OSError:
        return {}
    return {row.step: row.wall for row in reversed(rows)}  # of two rows of a step the first counts
