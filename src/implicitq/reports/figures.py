"""Figures of the report: small enough for a phone each, in colours that work on light and dark paper."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from implicitq.reports import statistics
from implicitq.reports.scores import StudyScores, TaskScores
from implicitq.sweeps.studies import UNIQUE
from implicitq.types import Array

Curve = tuple[Array, Array]  # steps and values of a line, [P] each

_INK = "#1a1b1c"  # replaced by the page's own colour of text
# Okabe and Ito's colours, which stay apart for eyes that see fewer; seven, then dashes and marks tell lines apart
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", _INK)
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
_MARKS = ("", "o", "s", "^", "D", "v", "X", "P")
_WIDTH = 5.2
_TICK, _LEGEND = 22, 54  # characters of a label in one line, beside an axis and below it
_MOST_POINTS = 100  # of a curve; the end is always one
_BAND = {"alpha": 0.18, "linewidth": 0}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names of lines and tasks may have any $
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
    """A colour, dashes and a mark for each line; unique parameters have the colour of the best ones, dashed."""
    bases = list(dict.fromkeys(each.removesuffix(UNIQUE) for each in lines))
    number, unique = bases.index(line.removesuffix(UNIQUE)), line.endswith(UNIQUE)
    again = number // len(COLOURS)  # how often its colour was given away before
    style = {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": _DASHES[(2 * again + unique) % len(_DASHES)],
        "linewidth": 1.6,
    }
    mark = _MARKS[again % len(_MARKS)]
    return {**style, "marker": mark, "markersize": 4.5, "markevery": 0.12} if mark else style


def task_curves(scores: StudyScores, task: TaskScores, against_time: bool = False) -> Figure:
    """Mean return over seeds with one standard deviation, against environment steps or mean processor time."""
    figure, axes = _figure()
    chosen = _thinned(len(task.grid))
    for lines in task.by_runs():
        cell = task.cells[lines[0]]
        values = cell.values[:, chosen]
        some = np.isfinite(cell.seconds[:, chosen] if against_time else values).any(axis=0)
        present = values[:, some]
        where = np.nanmean(cell.seconds[:, chosen][:, some], axis=0) / 60 if against_time else task.grid[chosen][some]
        mean, spread = np.nanmean(present, axis=0), np.nanstd(present, axis=0)
        style = style_of(scores.lines, lines[0])
        name = " = ".join(scores.names[line] for line in lines)
        axes.plot(where, mean, label=f"{name}, {_seeds(cell.values)}", **_marked(style, len(where)))
        if len(values) > 1:
            axes.fill_between(where, mean - spread, mean + spread, color=style["color"], **_BAND)
    if task.random is not None:
        axes.axhline(task.random, color=_INK, linewidth=0.8, linestyle=(0, (1, 3)))
    unit = "minutes of processor time" if against_time else "environment steps"
    axes.set(title=task.task, xlabel=unit, ylabel="undiscounted return")
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    return _with_legend(figure, axes)


def training_signals(scores: StudyScores, task: str, panels: Mapping[str, Mapping[str, Curve]]) -> Figure:
    """Loss, value and the like while training: a panel each, with every line's mean over seeds."""
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    columns = min(2, len(panels))
    grid = figure.subplots(-(-len(panels) // columns), columns, squeeze=False).ravel()
    handles: dict[str, Any] = {}
    for axes, (name, curves) in zip(grid, panels.items(), strict=False):
        for line, (steps, values) in curves.items():
            (handles[line],) = axes.plot(steps, values, **_marked(style_of(scores.lines, line), len(steps)))
        _scale(axes, name, [values for _, values in curves.values()])
        axes.set_title(name, fontsize=10)
        axes.tick_params(labelsize=8)
        axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    for axes in grid[len(panels) :]:
        axes.remove()
    for axes in grid[max(0, len(panels) - columns) : len(panels)]:
        axes.set_xlabel("environment steps", fontsize=9)
    figure.suptitle(f"{task}, while training", fontsize=11)
    lines = [line for line in scores.lines if line in handles]
    height = 1.0 + 1.75 * -(-len(panels) // columns)
    return _legend_below(figure, [handles[line] for line in lines], [scores.names[line] for line in lines], height)


def aggregates(scores: StudyScores, found: dict[str, dict[str, statistics.Interval]]) -> Figure:
    """Point and interval of each aggregate, a panel each, lines from top to bottom."""
    figure, panels = _rows([scores.names[line] for line in found], len(statistics.AGGREGATES))
    for axes, name in zip(panels, statistics.AGGREGATES, strict=True):
        for row, (line, intervals) in enumerate(found.items()):
            _whisker(axes, row, intervals[name], style_of(scores.lines, line)["color"])
        axes.set_title(name)
        axes.axvline(1, color=_INK, linewidth=0.8, linestyle=(0, (1, 3)))
    figure.supxlabel("normalised score (random 0, best SAC 1)", fontsize=10)
    return figure


def improvements(scores: StudyScores, found: dict[str, statistics.Interval], rival: str) -> Figure:
    figure, (axes,) = _rows([scores.names[line] for line in found], 1)
    for row, (line, interval) in enumerate(found.items()):
        _whisker(axes, row, interval, style_of(scores.lines, line)["color"])
    axes.axvline(0.5, color=_INK, linewidth=0.8, linestyle=(0, (1, 3)))
    label = _wrapped(f"chance to beat {rival}", 2 * _TICK)
    axes.set(xlim=(-0.03, 1.03), xlabel=label, title="Probability of improvement")
    return figure


def profiles(scores: StudyScores, matrices: dict[str, Array], generator: np.random.Generator) -> Figure:
    figure, axes = _figure()
    everything = np.concatenate([matrix.ravel() for matrix in matrices.values()])
    low, high = np.nanpercentile(everything, [0, 100])
    thresholds = np.linspace(min(0.0, low), max(1.1, high), 81)
    for line, matrix in matrices.items():
        value, lower, upper = statistics.profile_band(matrix, thresholds, generator)
        style = style_of(scores.lines, line)
        axes.plot(thresholds, value, label=scores.names[line], **style)
        axes.fill_between(thresholds, lower, upper, color=style["color"], **_BAND)
    axes.set(
        title="Performance profile", xlabel="normalised score s", ylabel="share of runs with score > s", ylim=(0, 1.02)
    )
    return _with_legend(figure, axes)


def along_training(
    scores: StudyScores, tasks: Sequence[TaskScores], aggregate: str, generator: np.random.Generator
) -> Figure:
    """An aggregate of the normalised scores along training, of the lines that are on all tasks."""
    lines = [line for line in scores.lines if all(line in task.cells for task in tasks)]
    figure, axes = _figure()
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
        value, low, high = statistics.curve_band(cube, statistics.AGGREGATES[aggregate], generator)
        style = style_of(scores.lines, line)
        some = np.isfinite(value)
        axes.plot(where[some], value[some], label=scores.names[line], **_marked(style, int(some.sum())))
        axes.fill_between(where[some], low[some], high[some], color=style["color"], **_BAND)
    axes.set(
        title=f"{aggregate[0].upper()}{aggregate[1:]} along training",
        xlabel="environment steps" if equal else "share of each task's steps, in %",
        ylabel=f"{aggregate} of normalised scores",
    )
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    return _with_legend(figure, axes)


def to_svg(figure: Figure, name: str, alternative: str) -> str:
    """For the inside of a page: takes the page's colour of text, and ids that no other figure has."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r'(id="|"#|url\(#)', rf"\g<1>{name}-", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{alternative}"', 1)


def to_file(figure: Figure, form: str) -> bytes:
    buffer = io.BytesIO()
    clocks = {"pdf": {"CreationDate": None}, "png": {"Software": None}}
    figure.savefig(buffer, format=form, dpi=160, facecolor="white", metadata=clocks[form])
    return buffer.getvalue()


def _figure() -> tuple[Figure, Any]:
    figure = Figure(layout="constrained")  # its height is known with the legend
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _with_legend(figure: Figure, axes: Any) -> Figure:
    handles, labels = axes.get_legend_handles_labels()
    return _legend_below(figure, handles, labels, 2.9)


def _legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str], height: float) -> Figure:
    """Two columns, or one for long labels; the figure is as much higher."""
    columns = 2 if max(map(len, labels)) <= _LEGEND // 2 else 1
    wrapped = [_wrapped(label, _LEGEND) for label in labels]
    rows = sum(1 + label.count("\n") for label in wrapped)
    figure.set_size_inches(_WIDTH, height + 0.19 * math.ceil(rows / columns))
    figure.legend(handles, wrapped, loc="outside lower center", ncols=columns)
    return figure


def _scale(axes: Any, name: str, curves: Sequence[Array]) -> None:
    """Logarithmic for losses, and for values of which some have left all others behind."""
    if name == "loss" and all((values > 0).all() for values in curves):
        axes.set_yscale("log")
        low, high = min(values.min() for values in curves), max(values.max() for values in curves)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    least, *_, most = sorted([1.0, *(float(np.abs(values).max()) for values in curves)])
    if name == "value" and most > 1_000 * least and len(curves) > 1:
        axes.set_yscale("symlog", linthresh=max(1.0, least))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.6g}")  # no powers of ten, which would need mathematics
    axes.yaxis.set_minor_formatter(lambda value, _: "")


def _rows(lines: list[str], panels: int) -> tuple[Figure, Any]:
    """Panels that share a row for each line, from top to bottom."""
    labels = [_wrapped(line, _TICK) for line in lines]
    tallest = 1 + max(label.count("\n") for label in labels)
    size = _WIDTH, 0.9 + 0.24 * len(lines) * (1 + 0.5 * (tallest - 1))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
    axes[0].set_yticks(range(len(lines)), labels, fontsize=8)
    axes[0].set_ylim(len(lines) - 0.5, -0.5)
    return figure, axes


def _wrapped(label: str, width: int) -> str:
    return textwrap.fill(label, width, break_long_words=False, break_on_hyphens=False)


def _whisker(axes: Any, row: int, interval: statistics.Interval, colour: str) -> None:
    axes.plot([interval.low, interval.high], [row, row], color=colour, linewidth=5, alpha=0.35, solid_capstyle="butt")
    axes.plot([interval.value], [row], color=colour, marker="o", markersize=5, linestyle="")


def _marked(style: dict[str, Any], points: int) -> dict[str, Any]:
    return {**style, "marker": style.get("marker", "o"), "markersize": 4, "markevery": 1} if points < 3 else style


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
