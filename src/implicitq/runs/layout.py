"""Reading run folders, whole or not. Needs no JAX: reports and live tables are instant."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from implicitq import configs
from implicitq.configs import Config
from implicitq.runs.atomic_files import read_json
from implicitq.types import Array, InputError

REPORT = "report"
_TRACES = ("config.json", "evaluations.csv", "versions.json", "checkpoints")  # what makes a folder a run's


@dataclass(frozen=True)
class FoundRun:
    """A run as its folder tells it."""

    folder: Path
    name: str  # of the folder, relative to where the search began
    config: Config
    versions: dict[str, Any] | None  # None if not recorded
    steps: Array  # [E] of its evaluations, ascending
    means: Array  # [E] mean return of each
    seconds: Array  # [E] processor time of training up to each; NaN where it was not recorded
    cut: bool = False  # the last row was half-written and is left out

    @property
    def finished(self) -> bool:
        return len(self.steps) > 0 and int(self.steps[-1]) >= self.config.steps


@dataclass(frozen=True)
class Broken:
    """A folder that should be a run and cannot be read as one."""

    name: str
    reason: str


@dataclass(frozen=True)
class Progress:
    """How far a run is, from what its folder shows so far."""

    step: int = 0
    rate: float | None = None  # steps per second
    score: float | None = None  # of the last evaluation


def fresh_folder(config: Config) -> Path:
    """runs/TASK-ALGORITHM-SEED-TIME, with a number behind it if that is taken."""
    stem = f"{config.env.replace('/', '-').replace(':', '-')}-{config.algorithm}-{config.seed}"
    base = Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    number, folder = 1, base
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def find_runs(root: Path) -> tuple[list[FoundRun], list[Broken]]:
    """All runs below a folder, and what looks like one but is broken; both by name."""
    if not root.is_dir():
        raise InputError(f"{root} is not a folder")
    found, broken = [], []
    for path, folders, files in os.walk(root):
        if not any(trace in files or trace in folders for trace in _TRACES):
            folders[:] = sorted(name for name in folders if name != REPORT and not name.startswith("."))
            continue
        folders.clear()
        folder = Path(path)
        name = str(folder.relative_to(root))
        try:
            found.append(read_run(folder, name))
        except InputError as error:
            broken.append(Broken(name, str(error)))
    return sorted(found, key=lambda run: run.name), sorted(broken, key=lambda each: each.name)


def read_run(folder: Path, name: str) -> FoundRun:
    config = read_config(folder)
    steps, means, cut = read_evaluations(folder / "evaluations.csv")
    if not len(steps):
        raise InputError("evaluations.csv holds no evaluation yet")
    seconds = read_seconds(folder / "timing.csv", steps)
    return FoundRun(folder, name, config, read_versions(folder), steps, means, seconds, cut)


def read_config(folder: Path) -> Config:
    try:
        data = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise InputError("it has no config.json") from None
    except (OSError, ValueError) as error:
        raise InputError(f"config.json cannot be read: {error}") from None
    return configs.from_file(data, "config.json")


def read_versions(folder: Path) -> dict[str, Any] | None:
    path = folder / "versions.json"
    found = read_json(path) if path.is_file() else None
    if found is not None and not isinstance(found, dict):
        raise InputError("versions.json holds no table of versions")
    return found


def read_evaluations(path: Path) -> tuple[Array, Array, bool]:
    """Steps and mean returns. A last row without its end is left out, and said so; anything else is refused.

    Only the first two columns are parsed: a study has millions of rows.
    """
    try:
        content = path.read_bytes()
    except OSError:
        raise InputError("it has no evaluations.csv") from None
    cut = not content.endswith(b"\n")
    header, *rows = content.split(b"\n")[:-1] or [b""]
    if not header.startswith(b"step,mean_return,"):
        raise InputError("evaluations.csv does not begin with its header")
    commas = header.count(b",")
    try:
        pairs = [row.split(b",", 2)[:2] for row in rows]
        steps = np.array([int(pair[0]) for pair in pairs], np.int64)
        means = np.array([float(pair[1]) for pair in pairs])
    except (ValueError, IndexError):
        raise InputError("evaluations.csv has a row that is not of numbers") from None
    if not np.isfinite(means).all() or any(row.count(b",") != commas for row in rows):
        raise InputError("evaluations.csv has a row that is not whole")
    if (np.diff(steps) <= 0).any():
        raise InputError("evaluations.csv has steps that do not ascend")
    return steps, means, cut


def read_seconds(path: Path, steps: Array) -> Array:
    """Processor time at these steps; NaN where it cannot be read, since clocks are no part of a result.

    Of two rows of a step the first counts; the second is that of a checkpoint, after the evaluation.
    """
    try:
        rows = path.read_bytes().split(b"\n")[1:-1]
        clock = {int(row.split(b",", 1)[0]): row for row in reversed(rows)}
        found = [float(clock[step].rsplit(b",", 1)[1]) if step in clock else np.nan for step in steps.tolist()]
    except (OSError, ValueError, IndexError):
        return np.full(len(steps), np.nan)
    return np.array(found)


def progress_of(folder: Path) -> Progress:
    """Never fails: a run may be writing at this moment, or not have begun."""
    clocks = _last_rows(folder / "timing.csv", 8)
    scores = _last_rows(folder / "evaluations.csv", 1)
    step = int(clocks[-1][0]) if clocks else 0
    score = scores[-1][1] if scores else None
    rate = None
    if len(clocks) > 1:
        seconds = clocks[-1][1] - clocks[0][1]
        rate = (clocks[-1][0] - clocks[0][0]) / seconds if seconds > 0 else None
    return Progress(max(step, int(scores[-1][0]) if scores else 0), rate, score)


def _last_rows(path: Path, count: int) -> list[tuple[float, float]]:
    """The first two numbers of the last whole rows."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 2_000 * count))
            lines = file.read().split(b"\n")[1:-1]  # the first is cut, or the header
        return [(float(a), float(b)) for a, b, *_ in (line.split(b",", 2) for line in lines[-count:])]
    except (OSError, ValueError):
        return []
