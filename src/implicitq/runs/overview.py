"""The curves of any run folders, with labels that tell them apart. Needs no JAX."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from implicitq.runs import settings
from implicitq.runs.curve import Curves
from implicitq.runs.layout import CONFIG, EVALUATIONS, METRICS, has_run, read_curve, read_json_file
from implicitq.runs.metrics import read_metrics
from implicitq.runs.settings import RunConfig
from implicitq.types import Evaluation, InputError

_TOLD = ("algorithm", "env", "seed")  # of a run, where runs differ in it


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
    if not any(evaluations or len(metrics.get("step", ())) for _, _, metrics, evaluations in found):
        raise InputError(f"there is nothing to draw yet in {', '.join(map(str, paths))}")
    labels = _labels(paths, [config for _, config, *_ in found])
    return [
        Curves(label, evaluations, metrics, _fixed_temperature(config))
        for label, (_, config, metrics, evaluations) in zip(labels, found, strict=True)
    ]


def _runs_in(folder: Path) -> list[Path]:
    if has_run(folder):
        return [folder]
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    found = sorted(Path(path) for path, _, files in os.walk(folder) if CONFIG in files)
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
    return float(value) if isinstance(value, int | float) else None


def _labels(paths: Sequence[Path], runs: Sequence[RunConfig]) -> list[str]:
    """What sets the runs apart; their folders if that does not."""
    if len(runs) == 1:
        return [f"{runs[0].algorithm} on {runs[0].env}, seed {runs[0].seed}"]
    apart = [name for name in _TOLD if len({getattr(run, name) for run in runs}) > 1]
    labels = [", ".join(f"seed {run.seed}" if name == "seed" else getattr(run, name) for name in apart) for run in runs]
    if len(set(labels)) == len(labels):
        return labels
    return [f"{label} ({path})" if label else str(path) for label, path in zip(labels, paths, strict=True)]
