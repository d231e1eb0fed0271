"""What runs tell of themselves while they train: loss, value, entropy, temperature, and whether values diverged.

Read from the metrics.csv of a run folder, or of a study table, which has the rows at evaluations. Needs no JAX.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from implicitq.reports.figures import Curve
from implicitq.runs import logs, study_table
from implicitq.runs.files import LARGEST_RETURN, LARGEST_STEP
from implicitq.runs.layout import METRICS, FoundRun, check_log
from implicitq.types import Array, InputError

PANELS: dict[str, tuple[str, ...]] = {  # title -> columns, the first that is there counts
    "loss": ("loss",),
    "value": ("value", "q"),  # some files of SAC have no value, only q
    "entropy per dimension": ("entropy_per_dimension",),
    "temperature": ("temperature",),
}
_BINS = 100  # points of a curve: each is the mean of the rows in its part of the budget


class Signals:
    """Reads every metrics.csv once; notes those that cannot be read."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}  # of a run, by its name
        self.diverged: dict[str, str] = {}  # what its values did, by the run's name
        self._tables: dict[Path, Mapping[study_table.Key, Sequence[Mapping[str, str]]]] = {}
        self._binned: dict[tuple[str, int], dict[str, Array]] = {}

    def of_task(self, lines: Mapping[str, Iterable[FoundRun]], end: int) -> dict[str, dict[str, Curve]]:
        """Panel -> line -> mean over its runs; only what is there."""
        found: dict[str, dict[str, Curve]] = {}
        for line, runs in lines.items():
            binned = [self._of_run(run, end) for run in runs]
            for title in PANELS:
                rows = [(each["step"], each[title]) for each in binned if title in each]
                steps, values = _means([step for step, _ in rows]), _means([value for _, value in rows])
                some = np.isfinite(values)
                if some.any():
                    found.setdefault(title, {})[line] = (steps[some], values[some])
        return {title: found[title] for title in PANELS if title in found}

    def _of_run(self, run: FoundRun, end: int) -> dict[str, Array]:
        key = run.name, end
        if key not in self._binned:
            try:
                columns = self._columns(run)
            except InputError as error:
                self.notes[run.name] = f"{run.name}: its loss, value and entropy are not shown: {error}"
                columns = {}
            told = logs.implausible_in(columns)
            if told is not None:
                self.diverged[run.name] = f"{run.name}: {told}"
            self._binned[key] = _binned(columns, end)
        return self._binned[key]

    def _columns(self, run: FoundRun) -> dict[str, Array]:
        if run.label is None:
            if not (run.folder / METRICS).is_file():
                return {}
            check_log(run.folder, METRICS)
            return logs.read_metrics(run.folder)
        if run.folder not in self._tables:
            self._tables[run.folder] = {}  # a table that is broken is told of once
            self._tables[run.folder] = study_table.read_metrics(run.folder)
        rows = self._tables[run.folder].get(study_table.key_of(run), ())
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: np.array([float(row.get(name, "nan")) for row in rows]) for name in names}


def _binned(columns: Mapping[str, Array], end: int) -> dict[str, Array]:
    """The mean of every panel's column in each part of the budget, `step` too; NaN where there is nothing."""
    if not len(columns.get("step", ())):
        return {}
    steps = columns["step"]
    inside = (steps > 0) & (steps <= min(end, LARGEST_STEP))
    where = np.ceil(steps[inside] * _BINS / end).astype(int) - 1
    found = {"step": _bin_means(where, steps[inside])}
    for title, names in PANELS.items():
        column = next((columns[name] for name in names if name in columns), None)
        if column is not None:
            found[title] = _bin_means(where, column[inside])
    return found


def _bin_means(where: Array, values: Array) -> Array:
    good = np.abs(values) <= LARGEST_RETURN  # NaN is not
    counts = np.bincount(where[good], minlength=_BINS)
    sums = np.bincount(where[good], values[good], minlength=_BINS)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _means(rows: Sequence[Array]) -> Array:
    """Over runs, of those that have something there."""
    if not rows:
        return np.full(_BINS, np.nan)
    stacked = np.stack(rows)
    counts = np.isfinite(stacked).sum(axis=0)
    return np.where(counts > 0, np.nansum(stacked, axis=0) / np.maximum(counts, 1), np.nan)
