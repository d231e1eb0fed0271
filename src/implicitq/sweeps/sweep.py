"""A sweep: the runs of a plan, their state on disk, and the processes that make them or go on with them."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from implicitq.configs import Config, to_json
from implicitq.runs import layout as folders
from implicitq.runs.atomic_files import read_json, write_json
from implicitq.sweeps.studies import Plan, PlannedRun
from implicitq.types import InputError

PLANS = "plans"
LOGS = "logs"
ATTEMPTS = 3  # a run that crashes goes on from its checkpoint this often in all
_NOT_COMPARED = {"steps", "preset", "checkpoint_every", "log_every"}  # none of these changes what is learnt


@dataclass(frozen=True)
class Failure:
    run: PlannedRun
    reason: str


@dataclass(frozen=True)
class Outcome:
    finished: int
    failures: tuple[Failure, ...]
    interrupted: bool


def is_finished(out: Path, run: PlannedRun) -> bool:
    """Its evaluations reach the end; its checkpoints may be gone, but must not say otherwise."""
    folder, steps = out / run.folder, run.config().steps
    try:
        found = folders.read_run(folder, run.folder)
    except InputError:
        return False
    saved = [int(path.stem) for path in (folder / "checkpoints").glob("*.json") if path.stem.isdecimal()]
    return int(found.steps[-1]) >= steps and (not saved or max(saved) >= steps)


def check_folders(out: Path, runs: Iterable[PlannedRun]) -> None:
    """Refuse to mix: a folder that is there already must hold the run that is planned for it."""
    for run in runs:
        folder = out / run.folder
        if not (folder / "config.json").is_file():
            continue
        try:
            apart = _differences(folders.read_config(folder), run.config())
        except InputError as error:
            raise InputError(f"{folder} is broken, remove it to make the run again: {error}") from None
        if apart:
            raise InputError(f"{folder} holds a run with other settings ({apart}); choose another --out")


def train_command(run: PlannedRun, folder: Path) -> list[str]:
    """Arguments of `implicitq` that make the same run by hand."""
    words = ["train", run.algorithm, "--env", run.env, "--seed", str(run.seed), "--out", str(folder)]
    for name, value in run.overrides.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, tuple | list) else (value,))]
    return words


def worker_command(out: Path, run: PlannedRun, inexact: bool) -> list[str]:
    """A process that makes the run, or goes on with it; it ends soon after this one does."""
    order = {"folder": str(out / run.folder), "config": to_json(run.config()), "inexact": inexact}
    return [sys.executable, "-m", "implicitq.sweeps.worker", str(os.getpid()), json.dumps(order)]


def log_path(out: Path, run: PlannedRun) -> Path:
    path = out / LOGS / f"{run.folder.replace('/', '_')}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def reason_of(log: Path, code: int) -> str:
    """One line on why a worker failed."""
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    said = [line for line in lines if line.startswith("error: ")] or lines
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{said[-1].removeprefix('error: ')} ({how})" if said else how


def plan_path(out: Path, study: str, suite: str) -> Path:
    return out / PLANS / f"{study}-{suite}.json"


def save_plan(out: Path, plan: Plan, arguments: list[str]) -> None:
    """What was planned, so that a report can tell what is missing, and how to get it."""
    runs = [{**dataclasses.asdict(run), "config": to_json(run.config())} for run in plan.runs]
    data = {
        "study": plan.study,
        "suite": plan.suite,
        "command": shlex.join(["implicitq", "sweep", *arguments]),
        "lines": {label: list(folders) for label, folders in plan.lines.items()},
        "left_out": list(plan.left_out),
        "runs": runs,
    }
    write_json(plan_path(out, plan.study, plan.suite), data)


def read_plans(out: Path) -> list[dict[str, Any]]:
    """Plans of all sweeps in a folder, by name."""
    return [_checked(path, read_json(path)) for path in sorted((out / PLANS).glob("*.json"))]


def _checked(path: Path, data: Any) -> dict[str, Any]:
    wanted = ("study", "suite", "command", "lines", "left_out", "runs")
    if not isinstance(data, dict) or any(key not in data for key in wanted):
        raise InputError(f"{path} is not the plan of a sweep")
    return data


def _differences(there: Config, planned: Config) -> str:
    ours, theirs = vars(planned), vars(there)
    names = [name for name in ours if name not in _NOT_COMPARED and ours[name] != theirs.get(name)]
    return ", ".join(f"{name} {theirs.get(name)} there, {ours[name]} planned" for name in names)
