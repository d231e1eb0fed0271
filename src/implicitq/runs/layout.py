"""The files of a run folder: their names, and how they are read, whole or not. docs/run-folder.md describes them.

Needs no JAX: reports and live tables are instant. Errors say what is wrong with which file; who knows the folder
puts its name in front.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from implicitq import configs
from implicitq.configs import Config
from implicitq.runs import manifests, settings
from implicitq.runs.files import (
    LARGEST_JSON,
    LARGEST_RETURN,
    LARGEST_STEP,
    parse_json,
    read_bytes,
    read_end,
    read_start,
    refuse_links,
)
from implicitq.runs.settings import RunConfig
from implicitq.types import Array, Evaluation, InputError

CONFIG = "config.json"
VERSIONS = "versions.json"
METRICS = "metrics.csv"
EVALUATIONS = "evaluations.csv"
EVALUATIONS_NPZ = "evaluations.npz"
TIMING = "timing.csv"
POLICY = "policy.safetensors"
BEST = "best.safetensors"
CURVE = "curve.png"
CHECKPOINTS = "checkpoints"
REPLAY = "replay"
LOCK = ".lock"
SALVAGED = "salvaged.json"
TRACKING = "tracking.json"
BRANCHES = "branches.json"
START = "start.safetensors"

LOGS = (METRICS, EVALUATIONS)
"""Files that only grow, and are cut back to the checkpoint on resuming."""

TRACES = (CONFIG, EVALUATIONS, VERSIONS, CHECKPOINTS)
"""Any of these makes a folder that of a run."""

_HEADER = 10_000  # bytes, in which the columns begin that are looked for by name
_END = 100_000  # bytes, in which the last rows lie: one of 1,000 evaluation episodes has 30,000
_SUMMARY = ("step", "mean_return", "std_return", "mean_length")


@dataclass(frozen=True)
class FoundRun:
    """A run as its folder, or a study table, tells it."""

    folder: Path  # of the run, or of the table
    name: str  # of the run's folder, relative to where the search began
    config: RunConfig
    versions: dict[str, Any] | None  # None if not recorded
    steps: Array  # [E] of its evaluations, ascending
    means: Array  # [E] mean return of each
    seconds: Array  # [E] processor time of training up to each; NaN where it was not recorded
    cut: bool = False  # the last row was half-written and is left out
    label: str | None = None  # the line it belongs to, in a study table
    branches: tuple[str, ...] = ()  # where it went on with other settings, in words

    @property
    def finished(self) -> bool:
        return len(self.steps) > 0 and int(self.steps[-1]) >= self.config.steps


@dataclass(frozen=True)
class Progress:
    """How far a run is, from what its folder shows so far."""

    step: int = 0
    rate: float | None = None  # steps per second
    score: float | None = None  # of the last evaluation
    training: float | None = None  # mean return of the training episodes that ended last


def fresh_folder(config: Config, seeds: int = 1) -> Path:
    """runs/TASK-ALGORITHM-SEED-TIME, with a number behind it if that is taken; for several seeds, their number."""
    what = str(config.seed) if seeds == 1 else f"{seeds}-seeds"
    stem = f"{config.env.replace('/', '-').replace(':', '-')}-{config.algorithm}-{what}"
    base = Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    number, folder = 1, base
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def run_name(env: str, label: str, seed: int) -> str:
    """The folder of a run in a sweep, and its name in reports of a study table."""
    return f"{slug(env)}/{slug(label)}/{seed_name(seed)}"


def seed_name(seed: int) -> str:
    """The folder of one seed, in that of several."""
    return f"seed-{seed}"


def seeds_in(folder: Path) -> list[int]:
    """Seeds that have a run folder in this one, links aside; none if it is a run folder itself."""
    if has_run(folder) or not folder.is_dir():
        return []
    runs = (path for path in folder.iterdir() if has_run(path) and not path.is_symlink())
    found = (re.fullmatch(r"seed-(0|[1-9]\d{0,9})", path.name) for path in runs)
    return sorted(int(match[1]) for match in found if match is not None)


def run_folders(folder: Path) -> list[Path]:
    """The run folders of the seeds in this folder, or the folder itself if there are none."""
    return [folder / seed_name(seed) for seed in seeds_in(folder)] or [folder]


def slug(text: str) -> str:
    """A folder's name for a task or a label."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text.replace("=-", "=minus-")).strip("-.") or "unnamed"


def has_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps with a checkpoint, oldest first."""
    place = refuse_links(folder, folder / CHECKPOINTS)
    found = (manifests.checkpoint_step(path.name) for path in place.glob("*.json"))
    return sorted(step for step in found if step is not None)


def read_run(folder: Path, name: str) -> FoundRun:
    """A run of implicitq, or one that another library left in the same files."""
    data = read_json_file(folder, CONFIG)
    check_log(folder, EVALUATIONS)
    steps, means, cut = read_curve(folder)
    if not len(steps):
        raise InputError(f"{EVALUATIONS} holds no evaluation yet")
    config = settings.from_file(data, CONFIG, spacing(steps))
    _check_config(folder, config)
    return FoundRun(folder, name, config, read_versions(folder), steps, means, read_seconds(folder, steps), cut)


def check_log(folder: Path, name: str) -> None:
    """Refuse a log that is not that of the newest checkpoint that can be read; without one, it is believed.

    The checkpoint is read first: what it knows of is in the file by then, even if the run goes on meanwhile.
    """
    newest = _newest_checkpoint(folder)
    if newest is None:
        return
    step, then = newest[0], newest[1]["logs"][name]
    try:
        content = read_bytes(folder / name)
    except FileNotFoundError:
        raise InputError(f"it has no {name}") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error}") from None
    if manifests.mark(content[: then["size"]]) != then:
        raise InputError(f"{name} was altered: it is not as it was at the checkpoint of step {step}")


def _check_config(folder: Path, config: RunConfig) -> None:
    """Refuse settings with which the newest checkpoint cannot have been made."""
    newest = _newest_checkpoint(folder)
    if newest is None or not isinstance(config, Config) or not newest[1].get("config"):
        return
    if (folder / BRANCHES).is_file():
        return  # it went on with other settings, which readers are told of
    changed = settings.changed_since(newest[1]["config"], config)
    if changed:
        raise InputError(f"{CONFIG} was changed after the checkpoint at step {newest[0]} ({changed})")


def _newest_checkpoint(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """Step and manifest of the newest one that can be read."""
    for step in reversed(checkpoint_steps(folder)):
        try:
            return step, manifests.read(folder / CHECKPOINTS / f"{manifests.stem(step)}.json", LOGS)
        except InputError:
            continue
    return None


def spacing(steps: Array) -> int:
    """The usual number of steps between evaluations."""
    return int(np.median(np.diff(steps, prepend=0)))


def read_config(folder: Path) -> Config:
    """The config of a run that is to go on."""
    data = read_json_file(folder, CONFIG)
    config = configs.from_file(data, CONFIG)
    configs.refuse_outdated(data)
    return config


def read_versions(folder: Path) -> dict[str, Any] | None:
    found = read_json_file(folder, VERSIONS) if (folder / VERSIONS).is_file() else None
    if found is not None and not isinstance(found, dict):
        raise InputError(f"{VERSIONS} holds no table of versions")
    return found


def read_json_file(folder: Path, name: str) -> Any:
    try:
        return parse_json(read_bytes(folder / name, LARGEST_JSON))
    except FileNotFoundError:
        raise InputError(f"it has no {name}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{name} cannot be read: {error}") from None


def evaluation_columns(episodes: int) -> list[str]:
    """The header of evaluations.csv: a summary, then the return and the length of every episode."""
    numbers = range(episodes)
    return [*_SUMMARY, *(f"return_{i}" for i in numbers), *(f"length_{i}" for i in numbers)]


def read_evaluations(folder: Path) -> list[Evaluation]:
    """All evaluations with every episode, oldest first."""
    header, rows, _ = _evaluation_rows(folder)
    first = len(_SUMMARY) + (header.count(b",") + 1 - len(_SUMMARY)) // 2  # length
    cells = [row.split(b",") for row in rows]
    try:
        return [
            Evaluation(tuple(map(float, row[len(_SUMMARY) : first])), tuple(map(int, row[first:])), int(row[0]))
            for row in cells
        ]
    except ValueError:
        raise InputError(f"{EVALUATIONS} has a row that is not of numbers") from None


def read_curve(folder: Path) -> tuple[Array, Array, bool]:
    """Steps and mean returns, and whether a last row without its end was left out.

    Only the first two columns are parsed: a study has millions of rows.
    """
    _, rows, cut = _evaluation_rows(folder)
    try:
        pairs = [row.split(b",", 2)[:2] for row in rows]
        steps = np.array([int(pair[0]) for pair in pairs], np.int64)
        means = np.array([float(pair[1]) for pair in pairs])
    except (ValueError, OverflowError):
        raise InputError(f"{EVALUATIONS} has a row that is not of numbers") from None
    check_curve(steps, means)
    return steps, means, cut


def check_curve(steps: Array, means: Array) -> None:
    """Refuse evaluations that no run makes: of these, nothing can be drawn or averaged."""
    if not np.isfinite(means).all():
        raise InputError(f"{EVALUATIONS} has a mean return that is not finite")
    if not (np.abs(means) <= LARGEST_RETURN).all():
        raise InputError(f"{EVALUATIONS} has a mean return beyond {LARGEST_RETURN:g}")
    if (np.diff(steps) <= 0).any() or (steps < 0).any() or (steps > LARGEST_STEP).any():
        raise InputError(f"{EVALUATIONS} has steps that do not ascend from 0 to at most {LARGEST_STEP:,}")


def _evaluation_rows(folder: Path) -> tuple[bytes, list[bytes], bool]:
    """The header, all whole rows, and whether a last one without its end was left out."""
    try:
        content = read_bytes(folder / EVALUATIONS)
    except FileNotFoundError:
        raise InputError(f"it has no {EVALUATIONS}") from None
    except OSError as error:
        raise InputError(f"{EVALUATIONS} cannot be read: {error}") from None
    header, *rows = content.split(b"\n")[:-1] or [b""]
    if not header.startswith(b"step,mean_return,"):
        raise InputError(f"{EVALUATIONS} does not begin with its header")
    commas = header.count(b",")
    if any(row.count(b",") != commas for row in rows):
        raise InputError(f"{EVALUATIONS} has a row that is not whole")
    return header, rows, not content.endswith(b"\n")


def read_seconds(folder: Path, steps: Array) -> Array:
    """Processor time at these steps; NaN where it cannot be read, since clocks are no part of a result.

    Of two rows of a step the first counts; the second is that of a checkpoint, after the evaluation.
    """
    try:
        rows = read_bytes(folder / TIMING).split(b"\n")[1:-1]
        clock = {int(row.split(b",", 1)[0]): row for row in reversed(rows)}
        found = [float(clock[step].rsplit(b",", 1)[1]) if step in clock else np.nan for step in steps.tolist()]
    except (OSError, ValueError, IndexError):
        return np.full(len(steps), np.nan)
    seconds = np.array(found)
    return np.where((seconds >= 0) & (seconds <= LARGEST_STEP), seconds, np.nan)


def progress_of(folder: Path, first_update: int = 0) -> Progress:
    """Never fails: a run may be writing at this moment, or not have begun.

    The rate is that of the steps from `first_update` on: those before, which learn nothing, are much faster.
    """
    clocks = _last_rows(folder / TIMING, b"wall_seconds", 8)
    scores = _last_rows(folder / EVALUATIONS, b"mean_return", 1)
    step = int(clocks[-1][0]) if clocks else 0
    score = scores[-1][1] if scores else None
    returns = [value for _, value in _last_rows(folder / METRICS, b"episode_return", 8)]
    clocks = [row for row in clocks if row[0] >= first_update]
    rate = None
    if len(clocks) > 1:
        seconds = clocks[-1][1] - clocks[0][1]
        rate = (clocks[-1][0] - clocks[0][0]) / seconds if seconds > 0 else None
    return Progress(max(step, int(scores[-1][0]) if scores else 0), rate, score, returns[-1] if returns else None)


def _last_rows(path: Path, name: bytes, count: int) -> list[tuple[float, float]]:
    """The step and the number in the column of that name, of those of the last whole rows where both are finite."""
    try:
        column = read_start(path, _HEADER).split(b"\n", 1)[0].split(b",").index(name)
        lines = read_end(path, _END).split(b"\n")[1:-1]  # the first is cut, or the header
        cells = [line.split(b",", column + 1) for line in lines[-count:]]
        rows = [(float(row[0]), float(row[column])) for row in cells]
        return [row for row in rows if np.isfinite(row).all()]
    except (OSError, ValueError, IndexError):
        return []
