"""A sweep: the runs of a plan, their state on disk, the processes that make them or go on with them, and their time."""

from __future__ import annotations

import dataclasses
import json
import os
import reprlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from implicitq.configs import to_json
from implicitq.machine import python
from implicitq.runs import layout
from implicitq.runs.files import check_file_name, check_name, lock, read_end, read_json, refuse_links, write_json
from implicitq.runs.settings import differences, identity
from implicitq.runs.study_table import ABOUT, is_table, read_extra, read_table
from implicitq.sweeps.studies import Plan, PlannedRun
from implicitq.sweeps.suites import settings_table
from implicitq.types import InputError

PLANS = "plans"
LOGS = "logs"
ATTEMPTS = 3  # a run that crashes goes on from its checkpoint this often in all
_ELSEWHERE = "choose another --out"
_LOG_END = 100_000  # bytes of a log in which the reason of a failure is looked for
_LONGEST_LABEL = 500
_TRIAL_STEPS, _TRIALS = 200, 2  # enough for an estimate of the time
_LEAST_REPLAY = 2_000  # what measuring fills


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
    """Its folder's evaluations reach the end; its checkpoints may be gone, but must not say otherwise."""
    folder, steps = out / run.folder, run.config().steps
    try:
        found = layout.read_run(folder, run.folder)
    except InputError:
        return False
    saved = layout.checkpoint_steps(folder)
    return int(found.steps[-1]) >= steps and (not saved or saved[-1] >= steps)


def finished_in_table(out: Path, runs: Iterable[PlannedRun]) -> dict[str, str]:
    """Runs that the study table in `out` holds to their planned end: folder -> what they are called in the table.

    A table that is broken is refused, and so is one with other settings under the name of a run.
    """
    if not is_table(out):
        return {}
    try:
        table = read_table(out)
    except InputError as error:
        raise InputError(f"the study table in {out} is broken: {error}") from None
    named = {found.name: found for found in table}
    same = {identity(found.config): found for found in table}
    known: dict[str, str] = {}
    for run in runs:
        config = run.config()
        found = same.get(identity(config))
        if found is not None and int(found.steps[-1]) >= config.steps:
            known[run.folder] = found.name
        elif found is None and run.folder in named:
            apart = differences(named[run.folder].config, config)
            raise InputError(f"the study table in {out} has {run.folder} with other settings ({apart}); {_ELSEWHERE}")
    return known


def check_folders(out: Path, runs: Iterable[PlannedRun]) -> None:
    """Refuse to mix: a folder that is there already must hold the run that is planned for it."""
    for run in runs:
        folder = refuse_links(out, out / run.folder)
        if not any((folder / name).exists() for name in (layout.CONFIG, layout.EVALUATIONS, layout.CHECKPOINTS)):
            continue  # nothing is there, or a run that died at once
        try:
            apart = differences(layout.read_config(folder), run.config())
        except InputError as error:
            raise InputError(f"{folder} is broken, remove it to make the run again: {error}") from None
        if apart:
            raise InputError(f"{folder} holds a run with other settings ({apart}); {_ELSEWHERE}")


def worker_command(out: Path, run: PlannedRun, inexact: bool) -> list[str]:
    """A process that makes the run, or goes on with it; it ends soon after this one does."""
    order = {"folder": str(out / run.folder), "config": to_json(run.config()), "inexact": inexact}
    return python("-m", "implicitq.sweeps.worker", str(os.getpid()), json.dumps(order))


def log_path(out: Path, run: PlannedRun) -> Path:
    path = refuse_links(out, out / LOGS / f"{run.folder.replace('/', '_')}.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Two sweeps at once in one folder would take each other's runs for crashed; the lock goes with the process."""
    path = refuse_links(out, out / LOGS / layout.LOCK)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    try:
        if not lock(handle, wait=False):
            raise InputError(f"another sweep is running in {out}; wait for its end, or {_ELSEWHERE}")
        yield
    finally:
        os.close(handle)


def reason_of(log: Path, code: int) -> str:
    """One line on why a worker failed."""
    try:
        lines = [line for line in read_end(log, _LOG_END).decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    said = [line for line in lines if line.startswith("error: ")] or lines
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{said[-1].removeprefix('error: ')} ({how})" if said else how


def plan_path(out: Path, study: str, suite: str) -> Path:
    name = f"{check_file_name(study, 'the name of a study')}-{check_file_name(suite, 'the name of a suite')}.json"
    return refuse_links(out, out / PLANS / name)


def save_plan(out: Path, plan: Plan, arguments: list[str], names: Mapping[str, str] | None = None) -> None:
    """What was planned, so that a report can tell what is missing, and how to get it.

    `names` has those runs that go by another name than their folder's, as some of a study table may.
    """
    called = names or {}
    data = {
        "study": plan.study,
        "suite": plan.suite,
        "command": shlex.join(["implicitq", "sweep", *arguments]),
        "settings": plan.settings,
        "lines": {label: [called.get(name, name) for name in folders] for label, folders in plan.lines.items()},
        "left_out": list(plan.left_out),
    }
    write_json(plan_path(out, plan.study, plan.suite), data)


def read_plans(out: Path) -> list[dict[str, Any]]:
    """Plans of all sweeps in a folder, sorted by name; plan files replace plans of the same name in a study table."""
    folder = refuse_links(out, out / PLANS)
    kept = read_extra(out, "plans") or []
    if not isinstance(kept, list):
        raise InputError(f"{out / ABOUT}: plans must be a list, got {reprlib.repr(kept)}")
    files = sorted(folder.glob("*.json"))
    plans = [_checked(out / ABOUT, plan) for plan in kept] + [_checked(path, read_json(path)) for path in files]
    by_name = {(plan["study"], plan["suite"]): plan for plan in plans}
    return [plan for _, plan in sorted(by_name.items())]


def remove_plans(out: Path) -> None:
    """Remove the plan files: the study table in the folder holds them."""
    folder = refuse_links(out, out / PLANS)
    for path in folder.glob("*.json"):
        path.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _checked(path: Path, data: Any) -> dict[str, Any]:
    """A plan of which everything is as `save_plan` writes it; a file can say anything."""
    match data:
        case {"study": study, "suite": suite, "command": str(), "lines": {**lines}, "left_out": [*left_out]} if all(
            isinstance(text, str) for text in left_out
        ) and all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lines.values()):
            check_file_name(study, f"{path}: study")
            check_file_name(suite, f"{path}: suite")
            for label in lines:
                check_name(label, f"{path}: a line", _LONGEST_LABEL)
        case _:
            raise InputError(f"{path} is not the plan of a sweep")
    settings = data.get("settings", {})  # plans of earlier versions do not tell
    if not isinstance(settings, dict):
        raise InputError(f"{path}: settings must be a table of tasks, got {reprlib.repr(settings)}")
    return {**data, "settings": {task: settings_table(path, task, values) for task, values in settings.items()}}


def common_settings(plans: Sequence[Mapping[str, Any]], name: str, task: str) -> Mapping[str, Any] | None:
    """What the suite of a run sets for all lines on the task; None if no plan tells, or several tell otherwise."""
    covering = [plan for plan in plans if any(name in folders for folders in plan["lines"].values())]
    told = [plan["settings"][task] for plan in covering or plans if task in plan["settings"]]
    return told[0] if told and all(settings == told[0] for settings in told) else None


class Rate(NamedTuple):
    steps_per_second: float
    source: str


def rates(out: Path, plan: Plan, given: float | None, tell: Callable[[str], None]) -> dict[str, Rate]:
    """Steps per second of every algorithm on one core: given, found in clocks of runs that exist, or measured."""
    if given is not None and not given > 0:
        raise InputError(f"rate must be a positive number, got {given}")
    found: dict[str, Rate] = {}
    for algorithm in dict.fromkeys(run.algorithm for run in plan.runs):
        runs = [run for run in plan.runs if run.algorithm == algorithm]
        if given is not None:
            found[algorithm] = Rate(given, "given by --rate")
            continue
        clocks = [p.rate for p in (layout.progress_of(out / run.folder) for run in runs) if p.rate is not None]
        if clocks:
            found[algorithm] = Rate(float(np.median(clocks)), f"median of {len(clocks)} run(s) in {out}")
            continue
        tell(f"measuring {algorithm} on {runs[0].env}")
        found[algorithm] = Rate(_measured_rate(runs[0]), f"measured now on {runs[0].env}, without evaluations")
    return found


def expected_seconds(runs: list[PlannedRun], known: dict[str, Rate], workers: int) -> float:
    """Wall time, if the workers share the work evenly."""
    return sum(run.config().steps / known[run.algorithm].steps_per_second for run in runs) / min(
        workers, len(runs) or 1
    )


def _measured_rate(run: PlannedRun) -> float:
    before: set[int] | None = None
    if hasattr(os, "sched_getaffinity"):  # as a worker would be
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(before)})
    try:
        from implicitq.bench.loop import measure

        config = dataclasses.replace(run.config(), replay_size=max(run.config().replay_size, _LEAST_REPLAY))
        done: dict[str, Any] = measure(config, steps=_TRIAL_STEPS, repeats=_TRIALS)
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)
    return float(done["steps_per_second"])
