"""Pictures of runs: the learning curve of one, and what is worth watching of several in their folders. Needs no JAX."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from implicitq.configs import Config
from implicitq.runs import settings
from implicitq.runs.files import LARGEST_RETURN, LARGEST_STEP
from implicitq.runs.finding import walk
from implicitq.runs.layout import CONFIG, EVALUATIONS, METRICS, has_run, read_curve, read_json_file
from implicitq.runs.logs import read_metrics
from implicitq.runs.settings import RunConfig
from implicitq.types import Array, Evaluation, InputError

_COLUMNS = 3  # panels beside each other
_MOST_LABELS = 12  # in a legend
_TOLD = ("algorithm", "env", "seed")  # of a run, where runs differ in it


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
    trained, returns = _drawable(metrics, "episode_return")
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
    steps, values = _drawable(run.metrics, column)
    if column == "temperature" and not len(steps) and run.temperature is not None and "step" in run.metrics:
        steps, _ = _drawable(run.metrics, "step")
        return steps, np.full(len(steps), run.temperature)
    return steps, values


def _drawable(metrics: Mapping[str, Array], column: str) -> tuple[Array, Array]:
    """Steps and values of a column, where both are numbers that an axis can have."""
    if column not in metrics:
        return np.zeros(0), np.zeros(0)
    steps, values = metrics["step"], metrics[column]
    known = (np.abs(steps) <= LARGEST_STEP) & (np.abs(values) <= LARGEST_RETURN)
    return steps[known], values[known]


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


def read_curves(folders: Sequence[Path]) -> list[Curves]:
    """The runs in these folders and below them, in order; InputError if there is none, or one cannot be read."""
    paths = list(dict.fromkeys(path for folder in folders for path in _runs_in(folder)))
    found = []
    for path in paths:
        try:
            config = settings.from_file(read_json_file(path, CONFIG), CONFIG, 1)
            metrics = read_metrics(path) if (path / METRICS).exists() else {}
            found.append((path, config, metrics, _evaluations(path)))
        except InputError as error:
            raise InputError(f"{path} cannot be drawn: {error}") from None
    labels = _labels(paths, [config for _, config, *_ in found])
    curves = [
        Curves(label, evaluations, metrics, _fixed_temperature(config))
        for label, (_, config, metrics, evaluations) in zip(labels, found, strict=True)
    ]
    if not any(len(_points(run, panel)[0]) for run in curves for panel in _PANELS):
        raise InputError(f"there is nothing to draw yet in {', '.join(map(str, paths))}")
    return curves


def _runs_in(folder: Path) -> list[Path]:
    if has_run(folder):
        return [folder]
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    found = sorted(path for path, _ in walk(folder) if has_run(path))
    if not found:
        raise InputError(f"there is no run in {folder}, nor below it")
    return found


def _evaluations(folder: Path) -> list[Evaluation]:
    """Steps and means; of runs of other libraries, nothing more is known."""
    if not (folder / EVALUATIONS).exists():
        return []
    steps, means, _ = read_curve(folder)
    return [Evaluation((mean,), (0,), step) for step, mean in zip(steps.tolist(), means.tolist(), strict=True)]


def _fixed_temperature(config: RunConfig) -> float | None:
    value = settings.to_file(config).get("temperature")
    if isinstance(config, Config) and value != "auto":
        value = config.fixed_temperature  # kl and entropy may stand for it
    return float(value) if isinstance(value, int | float) and abs(value) <= LARGEST_RETURN else None


def _labels(paths: Sequence[Path], runs: Sequence[RunConfig]) -> list[str]:
    """What sets the runs apart; their folders if that does not."""
    if len(runs) == 1:
        return [f"{runs[0].algorithm} on {runs[0].env}, seed {runs[0].seed}"]
    apart = [name for name in _TOLD if len({getattr(run, name) for run in runs}) > 1]
    labels = [", ".join(f"seed {run.seed}" if name == "seed" else getattr(run, name) for name in apart) for run in runs]
    if len(set(labels)) == len(labels):
        return labels
    return [f"{label} ({path})" if label else str(path) for label, path in zip(labels, paths, strict=True)]
