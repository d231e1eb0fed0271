"""Scores of a study: runs gathered by line and task, aligned on the grid of evaluations, normalised. Needs no JAX.

score = (x - random) / (SAC - random) for each task, x being the mean return of a run's evaluation, random that of
uniform actions, SAC the mean over seeds of the best SAC configuration at the same budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from implicitq.configs import Config
from implicitq.reports.labels import in_words
from implicitq.runs.layout import FoundRun
from implicitq.types import Array, InputError

NO_SAC = "SAC, which scores are relative to, is for Box actions, and the task has others"
UNMEASURED = "the random policy was not measured"
_MOST_POINTS = 1_000_000  # of a grid
_LEAST_APART = 1e-50  # SAC and the random policy, for a score to be a number


@dataclass(frozen=True)
class Cell:
    """The runs of one line on one task, on the task's grid."""

    seeds: tuple[int, ...]
    values: Array  # [S, G] mean returns; NaN where a run has no evaluation
    seconds: Array  # [S, G] processor time up to there; NaN where a run has no evaluation or no clock
    runs: tuple[str, ...] = ()  # their names

    @property
    def final(self) -> Array:
        """Mean returns at the end of the budget, of the runs that got there: at most [S]."""
        last = self.values[:, -1]
        return last[np.isfinite(last)]

    @property
    def standard_error(self) -> float:
        """Standard error of the mean over seeds at the end of the budget; NaN for fewer than two seeds."""
        return float(self.final.std(ddof=1) / np.sqrt(len(self.final))) if len(self.final) > 1 else np.nan

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds at the end; None for fewer than two seeds."""
        return float(self.final.std()) if len(self.final) > 1 else None

    @property
    def cost(self) -> float | None:
        """Mean processor time of the runs that got to the end; None unless all of them have clocks."""
        took = self.seconds[np.isfinite(self.values[:, -1]), -1]
        return float(took.mean()) if len(took) and np.isfinite(took).all() else None

    def after(self, seconds: float) -> float:
        """Mean return after this processor time, linear between evaluations; the first before, the last beyond."""
        known = np.isfinite(self.seconds) & np.isfinite(self.values)
        ended = np.flatnonzero(known[:, -1])
        curves = [(self.seconds[run, known[run]], self.values[run, known[run]]) for run in ended]
        return float(np.mean([np.interp(seconds, *curve) for curve in curves])) if curves else np.nan


class Standing(NamedTuple):
    """What a line reached on a task, what that cost, and how it compares with the best SAC."""

    seeds: int
    mean_return: float
    standard_error: float | None  # None for one seed
    cpu_seconds: float
    errors_above_sac: float | None  # the difference of the means, in standard errors of it
    score: float
    score_at_equal_time: float | None  # SAC counts with its return after the same processor time


@dataclass(frozen=True)
class TaskScores:
    task: str
    grid: Array  # [G] environment steps
    cells: Mapping[str, Cell]  # by line
    random: float | None
    baseline: float | None  # of the best SAC
    baseline_line: str | None
    problem: str | None  # why there are no normalised scores

    def normalised(self, values: Array) -> Array:
        if self.problem is not None or self.random is None or self.baseline is None:
            raise InputError(f"{self.task} has no normalised scores: {self.problem}")
        return (values - self.random) / (self.baseline - self.random)

    def by_runs(self) -> list[list[str]]:
        """The lines, in groups whose runs on this task are the same."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for line, cell in self.cells.items():
            groups.setdefault(cell.runs or (line,), []).append(line)
        return list(groups.values())

    def standing(self, line: str) -> Standing | None:
        """How a line stands beside the best SAC; None without finished runs, clocks, or scores on this task."""
        cell = self.cells.get(line)
        if self.problem is not None or self.random is None or self.baseline_line is None:
            return None
        if cell is None or cell.cost is None:
            return None
        sac = self.cells[self.baseline_line]
        mean, score = float(cell.final.mean()), float(self.normalised(cell.final).mean())
        error = None if np.isnan(cell.standard_error) else cell.standard_error
        if cell is sac:  # its seeds differ in speed: it would not be level with itself
            return Standing(len(cell.final), mean, error, cell.cost, None, score, score)
        apart = float(np.hypot(cell.standard_error, sac.standard_error))
        above = (mean - float(sac.final.mean())) / apart if apart > 0 else None
        then = sac.after(cell.cost) - self.random
        even = (mean - self.random) / then if then > 0 else None
        return Standing(len(cell.final), mean, error, cell.cost, above, score, even)


@dataclass(frozen=True)
class StudyScores:
    title: str
    lines: tuple[str, ...]
    tasks: tuple[TaskScores, ...]
    notes: tuple[str, ...]  # what was aligned, is missing or was cut
    names: Mapping[str, str]  # what figures and tables call the lines
    shared: tuple[str, ...] = ()  # settings of all lines, which their names leave out

    @property
    def scored(self) -> tuple[TaskScores, ...]:
        return tuple(task for task in self.tasks if task.problem is None)

    def matrix(self, line: str, tasks: Sequence[TaskScores]) -> Array | None:
        """Normalised scores at the end [S, T]; None unless the line has a finished run on every one of the tasks."""
        columns = [t.normalised(t.cells[line].final) if line in t.cells else np.zeros(0) for t in tasks]
        if not columns or any(not len(column) for column in columns):
            return None
        return _columns(columns)

    def best_sac(self, tasks: Sequence[TaskScores]) -> Array:
        """Normalised scores at the end [S, T] of the best SAC of each of these tasks, which all have one."""
        return _columns([t.normalised(t.cells[t.baseline_line].final) for t in tasks if t.baseline_line is not None])

    def comparable(self) -> tuple[tuple[TaskScores, ...], dict[str, Array]]:
        """Tasks with scores, and the matrix [S, T] of every line that has finished runs on all of them."""
        matrices = {line: self.matrix(line, self.scored) for line in self.lines}
        return self.scored, {line: matrix for line, matrix in matrices.items() if matrix is not None}


def _columns(columns: list[Array]) -> Array:
    matrix = np.full((max(map(len, columns)), len(columns)), np.nan)
    for number, column in enumerate(columns):
        matrix[: len(column), number] = column
    return matrix


def score_study(
    title: str,
    lines: Mapping[str, Sequence[FoundRun]],
    random: Mapping[str, Mapping[str, Any]],
    steps: int | None = None,
    same: Mapping[str, Sequence[str]] | None = None,
) -> StudyScores:
    """Gather, align and normalise; `steps` is the budget to compare at, by default that of the runs.

    `same` has the further labels of lines that are the same runs.
    """
    called, shared = in_words(lines, same or {})
    names = dict.fromkeys(run.config.env for runs in lines.values() for run in runs)
    notes: list[str] = []
    tasks = []
    for task in names:
        by_line = {label: [run for run in runs if run.config.env == task] for label, runs in lines.items()}
        tasks.append(_score_task(task, {k: v for k, v in by_line.items() if v}, random.get(task), steps, notes))
        notes += [
            f"{task}: {' and '.join(called[each] for each in twins)} are the same runs" for twins in _twins(tasks[-1])
        ]
    return StudyScores(title, tuple(lines), tuple(tasks), tuple(dict.fromkeys(notes)), called, shared)


def _twins(task: TaskScores) -> list[list[str]]:
    """Lines whose runs are the same on this task, though not on all."""
    return [lines for lines in task.by_runs() if len(lines) > 1]


def _score_task(
    task: str,
    lines: Mapping[str, Sequence[FoundRun]],
    random: Mapping[str, Any] | None,
    steps: int | None,
    notes: list[str],
) -> TaskScores:
    runs = [run for group in lines.values() for run in group]
    grid = _grid(task, runs, steps, notes)
    cells = {}
    for label, group in lines.items():
        ordered = sorted(group, key=lambda run: run.config.seed)
        aligned = [align(run, grid, notes) for run in ordered]
        values, seconds = (np.stack(each) for each in zip(*aligned, strict=True))
        names = tuple(run.name for run in ordered)
        cells[label] = Cell(tuple(run.config.seed for run in ordered), values, seconds, names)
    best = _best_sac(lines, cells)
    baseline = None if best is None else float(cells[best].final.mean())
    zero = None if random is None else float(random["mean"])
    problem = None
    if random is None:
        problem = UNMEASURED
    elif baseline is None and not all(
        "Box" in run.config.accepted_actions for run in runs if isinstance(run.config, Config)
    ):
        problem = NO_SAC
    elif baseline is None:
        problem = f"no finished SAC run to normalise by; run: implicitq train sac --env {task} --steps {grid[-1]}"
    elif not baseline - float(random["mean"]) > _LEAST_APART:
        problem = (
            f"SAC ({baseline:,.1f}) is not above the random policy ({random['mean']:,.1f}): a score has no meaning"
        )
    return TaskScores(task, grid, cells, zero, baseline, best, problem)


def _best_sac(lines: Mapping[str, Sequence[FoundRun]], cells: Mapping[str, Cell]) -> str | None:
    """The SAC line with the highest mean over seeds at the end (not the best seed); no branch, which no seed gives."""
    means = {
        label: float(cells[label].final.mean())
        for label, runs in lines.items()
        if runs[0].config.algorithm == "sac" and len(cells[label].final) and not any(run.branches for run in runs)
    }
    return max(means, key=lambda label: means[label]) if means else None


def _grid(task: str, runs: Sequence[FoundRun], steps: int | None, notes: list[str]) -> Array:
    """Steps at which the runs of a task are compared: multiples of eval_every, and the end of the budget."""
    budgets = sorted({run.config.steps for run in runs})
    budget = budgets[0] if steps is None else steps
    every = max(run.config.eval_every for run in runs)
    if budget // every > _MOST_POINTS:
        raise InputError(f"{task}: {budget:,} steps with an evaluation every {every:,} are too many to compare")
    if steps is None and len(budgets) > 1:
        listed = ", ".join(f"{each:,}" for each in budgets)
        notes.append(f"{task}: runs of unequal length ({listed} steps) are compared at {budget:,}")
    spacings = sorted({run.config.eval_every for run in runs})
    if len(spacings) > 1:
        notes.append(f"{task}: evaluations every {' or '.join(map(str, spacings))} steps are compared on the coarsest")
    points = np.arange(spacings[-1], budget + 1, spacings[-1])
    if not len(points) or points[-1] != budget:
        points = np.append(points, budget)
    return points


def align(run: FoundRun, grid: Array, notes: list[str]) -> tuple[Array, Array]:
    """Mean returns of a run on the grid, and the processor time it took to get there, [G] each.

    A point takes the nearest evaluation within half an interval of the run.

    What is missing stays missing (NaN) and is noted; nothing is made up in between.
    """
    tolerance = run.config.eval_every / 2
    right = np.clip(np.searchsorted(run.steps, grid), 1, max(1, len(run.steps) - 1))
    if len(run.steps) == 1:
        nearest = np.zeros(len(grid), int)
    else:
        closer = grid - run.steps[right - 1] <= run.steps[right] - grid
        nearest = np.where(closer, right - 1, right)
    distance = np.abs(run.steps[nearest] - grid)
    values = np.where(distance <= tolerance, run.means[nearest], np.nan)
    if run.steps[-1] < grid[-1]:  # the end must have been reached, not nearly
        values[-1] = np.nan
    missing = int(np.isnan(values).sum())
    shifted = int(((distance > 0) & np.isfinite(values)).sum())
    if run.cut:
        notes.append(f"{run.name}: its last row is half-written and is left out")
    if missing:
        notes.append(
            f"{run.name}: {missing} of {len(grid)} evaluations on the grid are missing (it is at step "
            f"{int(run.steps[-1]):,} of {run.config.steps:,})"
        )
    if shifted:
        notes.append(f"{run.name}: {shifted} evaluations lie beside the grid and count for its nearest point")
    return values, np.where(np.isfinite(values), run.seconds[nearest], np.nan)
