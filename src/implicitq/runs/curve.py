"""Pictures of runs: the learning curve of one, and what is worth watching of several. Needs no JAX."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from implicitq.types import Array, Evaluation

_COLUMNS = 3  # panels beside each other
_MOST_LABELS = 12  # in a legend


class Curves(NamedTuple):
    """What is drawn of a run."""

    label: str
    evaluations: Sequence[Evaluation]
    metrics: Mapping[str, Array]  # columns of metrics.csv, `step` among them; may be empty
    temperature: float | None = None  # a fixed one, which is no column


# Title of a panel -> column of metrics.csv.
_PANELS = {
    "training return": "episode_return",
    "evaluation, mean return": "",  # of evaluations.csv
    "loss": "loss",
    "value": "value",
    "entropy per dimension": "entropy_per_dimension",
    "temperature": "temperature",
}


def learning_curve(title: str, evaluations: Sequence[Evaluation], metrics: Mapping[str, Array]) -> bytes:
    """A PNG: mean return of every evaluation against environment steps, with a band of one standard deviation.

    The return while training is a faint line, and the best evaluation is marked.
    """
    figure = _figure(7, 4)
    axes = figure.add_subplot()
    steps = np.array([e.step for e in evaluations])
    means = np.array([e.mean for e in evaluations])
    spread = np.array([e.std for e in evaluations])
    trained, returns = _finite(metrics, "episode_return")
    if len(trained):
        axes.plot(trained, returns, color="0.6", linewidth=0.8, alpha=0.7, zorder=1, label="training episodes")
    axes.fill_between(steps, means - spread, means + spread, alpha=0.2, linewidth=0, label="± 1 std over episodes")
    axes.plot(steps, means, marker="o", markersize=3, label=f"mean of {len(evaluations[0].returns)} episodes")
    best = int(np.argmax(means))
    label = f"best: {means[best]:,.1f} at {steps[best]:,}"
    axes.plot(steps[best], means[best], "*", markersize=11, color="tab:orange", zorder=3, label=label)
    axes.set_title(title, parse_math=False)  # the name of an environment may have any $
    axes.set(xlabel="environment steps", ylabel="undiscounted return (deterministic policy)")
    _finish(axes)
    axes.legend(frameon=False, fontsize=8)
    return _bytes(figure, "png")


def overview(runs: Sequence[Curves], form: str = "png") -> bytes:
    """A picture in the format `form`: a panel for everything that any of the runs has, all runs in each."""
    panels = {name: [_points(run, name) for run in runs] for name in _PANELS}
    panels = {name: lines for name, lines in panels.items() if any(len(steps) for steps, _ in lines)}
    rows = -(-len(panels) // _COLUMNS)
    columns = min(len(panels), _COLUMNS)
    shown = runs[:_MOST_LABELS] if len(runs) > 1 else ()
    below = 0.3 * -(-len(shown) // 2) + (0.3 if len(runs) > len(shown) > 0 else 0)
    figure = _figure(4.4 * columns, 2.9 * rows + below + 0.3)
    for number, (name, lines) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, number + 1)
        for run, (steps, values) in enumerate(lines):
            marker = "." if len(steps) < 60 and name.startswith("evaluation") else None
            axes.plot(steps, values, linewidth=1.2, alpha=0.85, marker=marker, color=f"C{run % 10}")
        if name == "loss" and all((values > 0).all() for _, values in lines):
            axes.set_yscale("log")
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("environment steps", fontsize=9)
        _finish(axes)
    if len(runs) == 1:
        figure.suptitle(_plain(runs[0].label), fontsize=11)
    else:
        from matplotlib.lines import Line2D

        handles = [Line2D([], [], color=f"C{number % 10}", label=_plain(run.label)) for number, run in enumerate(shown)]
        if len(runs) > len(shown):
            handles.append(Line2D([], [], alpha=0, label=f"and {len(runs) - len(shown)} more"))
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return _bytes(figure, form)


def _points(run: Curves, panel: str) -> tuple[Array, Array]:
    """Steps and values of a line; none if the run has nothing there."""
    column = _PANELS[panel]
    if not column:
        return np.array([e.step for e in run.evaluations]), np.array([e.mean for e in run.evaluations])
    steps, values = _finite(run.metrics, column)
    if column == "temperature" and not len(steps) and run.temperature is not None and "step" in run.metrics:
        steps = run.metrics["step"]
        return steps, np.full(len(steps), run.temperature)
    return steps, values


def _finite(metrics: Mapping[str, Array], column: str) -> tuple[Array, Array]:
    if column not in metrics:
        return np.zeros(0), np.zeros(0)
    known = np.isfinite(metrics[column])
    return metrics["step"][known], metrics[column][known]


def _plain(label: str) -> str:
    return label.replace("$", r"\$")  # which would begin a formula


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _finish(axes: Any) -> None:
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_major_locator(_locator())
    axes.grid(alpha=0.3)


def _locator() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10], integer=True)


def _bytes(figure: Any, form: str) -> bytes:
    buffer = io.BytesIO()
    nothing = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}  # what would differ from run to run
    figure.savefig(buffer, format=form, metadata={nothing[form]: None})
    return buffer.getvalue()
