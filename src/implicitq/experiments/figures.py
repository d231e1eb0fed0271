"""Figures of the report: small enough for a phone each, in colours that work on light and dark paper."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from implicitq.experiments import statistics
from implicitq.experiments.scores import StudyScores, TaskScores
from implicitq.experiments.studies import UNIQUE
from implicitq.types import Array

_INK = "#1a1b1c"  # replaced by the page's own colour of text
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56a0e0", "#c08a00", "#8a6fd1", "#7f7f7f")
_DASHES = ("-", "--", "-.", ":")
_WIDTH = 4.8
_MOST_POINTS = 100  # of a curve; the end is always one
_BAND = {"alpha": 0.18, "linewidth": 0}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "implicitq",  # the same figure, the same bytes
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.color": _INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def style_of(lines: Sequence[str], line: str) -> dict[str, Any]:
    """A colour for each line; unique parameters have the colour of the best ones, dashed."""
    bases = list(dict.fromkeys(each.removesuffix(UNIQUE) for each in lines))
    number, unique = bases.index(line.removesuffix(UNIQUE)), line.endswith(UNIQUE)
    dashes = _DASHES[number // len(_COLOURS) * 2 % len(_DASHES) + unique]
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": dashes, "linewidth": 1.6}


def task_curves(scores: StudyScores, task: TaskScores) -> Figure:
    """Mean return over seeds against environment steps, with one standard deviation over seeds."""
    figure, axes = _figure(len(task.cells))
    chosen = _thinned(len(task.grid))
    for line, cell in task.cells.items():
        values = cell.values[:, chosen]
        some = np.isfinite(values).any(axis=0)
        steps, present = task.grid[chosen][some], values[:, some]
        mean, spread = np.nanmean(present, axis=0), np.nanstd(present, axis=0)
        style = style_of(scores.lines, line)
        axes.plot(steps, mean, label=f"{line} ({_seeds(cell.values)})", **_marked(style, len(steps)))
        axes.fill_between(steps, mean - spread, mean + spread, color=style["color"], **_BAND)
    if task.random is not None:
        axes.axhline(task.random, color=_INK, linewidth=0.8, linestyle=(0, (1, 3)))
    axes.set(title=task.task, xlabel="environment steps", ylabel="undiscounted return")
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    return _with_legend(figure, axes)


def aggregates(scores: StudyScores, found: dict[str, dict[str, statistics.Interval]]) -> Figure:
    """Point and interval of each aggregate, a panel each, lines from top to bottom."""
    lines = list(found)
    figure = Figure(figsize=(_WIDTH, 0.9 + 0.24 * len(lines)), layout="constrained")
    panels = figure.subplots(1, len(statistics.AGGREGATES), sharey=True)
    for axes, name in zip(panels, statistics.AGGREGATES, strict=True):
        for row, line in enumerate(lines):
            _whisker(axes, row, found[line][name], style_of(scores.lines, line)["color"])
        axes.set_title(name)
        axes.margins(y=0.1)
        axes.axvline(1, color=_INK, linewidth=0.8, linestyle=(0, (1, 3)))
    panels[0].set_yticks(range(len(lines)), lines)
    panels[0].invert_yaxis()
    figure.supxlabel("normalised score (random 0, best SAC 1)", fontsize=10)
    return figure


def improvements(scores: StudyScores, found: dict[str, statistics.Interval], over: str) -> Figure:
    figure = Figure(figsize=(_WIDTH, 1.0 + 0.26 * len(found)), layout="constrained")
    axes = figure.subplots()
    for row, (line, interval) in enumerate(found.items()):
        _whisker(axes, row, interval, style_of(scores.lines, line)["color"])
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.margins(y=0.1)
    axes.axvline(0.5, color=_INK, linewidth=0.8, linestyle=(0, (1, 3)))
    axes.set(xlim=(-0.03, 1.03), xlabel=f"P(line > {over})", title=f"Probability of improvement over {over}")
    return figure


def profiles(scores: StudyScores, matrices: dict[str, Array], generator: np.random.Generator) -> Figure:
    figure, axes = _figure(len(matrices))
    everything = np.concatenate([matrix.ravel() for matrix in matrices.values()])
    low, high = np.nanpercentile(everything, [0, 100])
    thresholds = np.linspace(min(0.0, low), max(1.1, high), 81)
    for line, matrix in matrices.items():
        value, lower, upper = statistics.profile_band(matrix, thresholds, generator)
        style = style_of(scores.lines, line)
        axes.plot(thresholds, value, label=line, **style)
        axes.fill_between(thresholds, lower, upper, color=style["color"], **_BAND)
    axes.set(
        title="Performance profile", xlabel="normalised score s", ylabel="share of runs with score > s", ylim=(0, 1.02)
    )
    return _with_legend(figure, axes)


def efficiency(scores: StudyScores, tasks: Sequence[TaskScores], generator: np.random.Generator) -> Figure:
    """IQM of the normalised scores along training, of the lines that are on all tasks."""
    lines = [line for line in scores.lines if all(line in task.cells for task in tasks)]
    figure, axes = _figure(len(lines))
    equal = all(np.array_equal(task.grid, tasks[0].grid) for task in tasks)
    shares = np.unique(np.linspace(1 / _MOST_POINTS, 1, _MOST_POINTS))
    for line in lines:
        if equal:
            chosen = _thinned(len(tasks[0].grid))
            where, columns = tasks[0].grid[chosen], [task.cells[line].values[:, chosen] for task in tasks]
        else:
            where, columns = 100 * shares, [_at_shares(task, task.cells[line].values, shares) for task in tasks]
        seeds = max(len(column) for column in columns)
        cube = np.full((len(where), seeds, len(tasks)), np.nan)  # [G, S, T]
        for number, (task, column) in enumerate(zip(tasks, columns, strict=True)):
            cube[:, : len(column), number] = task.normalised(column).T
        value, low, high = statistics.curve_band(cube, generator)
        style = style_of(scores.lines, line)
        some = np.isfinite(value)
        axes.plot(where[some], value[some], label=line, **_marked(style, int(some.sum())))
        axes.fill_between(where[some], low[some], high[some], color=style["color"], **_BAND)
    axes.set(
        title="Sample efficiency",
        xlabel="environment steps" if equal else "share of each task's steps, in %",
        ylabel="IQM of normalised scores",
    )
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    return _with_legend(figure, axes)


def to_svg(figure: Figure, name: str, alternative: str) -> str:
    """For the inside of a page: takes the page's colour of text, and ids that no other figure has."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r'(id="|"#|url\(#)', rf"\1{name}-", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{alternative}"', 1)


def to_file(figure: Figure, form: str) -> bytes:
    buffer = io.BytesIO()
    clocks = {"pdf": {"CreationDate": None}, "png": {"Software": None}}
    figure.savefig(buffer, format=form, dpi=160, facecolor="white", metadata=clocks[form])
    return buffer.getvalue()


def _figure(lines: int) -> tuple[Figure, Any]:
    figure = Figure(figsize=(_WIDTH, 2.9 + 0.19 * math.ceil(lines / 2)), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _with_legend(figure: Figure, axes: Any) -> Figure:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _whisker(axes: Any, row: int, interval: statistics.Interval, colour: str) -> None:
    axes.plot([interval.low, interval.high], [row, row], color=colour, linewidth=5, alpha=0.35, solid_capstyle="butt")
    axes.plot([interval.value], [row], color=colour, marker="o", markersize=5, linestyle="")


def _marked(style: dict[str, Any], points: int) -> dict[str, Any]:
    return {**style, "marker": "o", "markersize": 4} if points < 3 else style


def _thinned(length: int) -> Array:
    stride = -(-length // _MOST_POINTS)
    return np.arange(length)[::-1][::stride][::-1]


def _at_shares(task: TaskScores, values: Array, shares: Array) -> Array:
    """The last evaluation at or before each share of the budget; NaN before the first one: [S, G]."""
    index = np.searchsorted(task.grid, shares * task.grid[-1] * (1 + 1e-12), side="right") - 1
    return np.where(index >= 0, values[:, np.maximum(index, 0)], np.nan)


def _seeds(values: Array) -> str:
    count = len(values)
    return f"{count} seed" if count == 1 else f"{count} seeds"


def _short(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e3 else f"{value:g}"
