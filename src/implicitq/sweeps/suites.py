"""Suites: named lists of tasks, ours or the user's own from a TOML file."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from implicitq import configs
from implicitq.runs.files import check_file_name, check_name, digest_of, is_file_name
from implicitq.runs.layout import slug
from implicitq.types import ActionKind, InputError
from implicitq.validation import nearest, read_settings

Settings = Mapping[str, Any]

_LONGEST_NAME = 100


@dataclass(frozen=True)
class Suite:
    """Tasks that a study runs on, and settings that all its runs share."""

    name: str
    tasks: tuple[str, ...]
    settings: Settings = field(default_factory=dict)  # hyperparameters of all runs
    task_settings: Mapping[str, Settings] = field(default_factory=dict)  # of the runs on one task; these win
    algorithms: tuple[str, ...] | None = None  # only these of a study; None: all of them
    summary: str = ""  # for the help, of those that have a name

    def settings_on(self, task: str) -> dict[str, Any]:
        return {**self.settings, **self.task_settings.get(task, {})}


_DMC = (
    *("ball_in_cup-catch", "cartpole-swingup", "cheetah-run", "finger-spin"),
    *("hopper-hop", "humanoid-walk", "reacher-easy", "walker-run"),
)
SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            "gym",
            ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5"),
            summary="the paper's five MuJoCo tasks, in version 5",
        ),
        Suite(
            "adroit",
            ("AdroitHandDoor", "AdroitHandHammer", "AdroitHandPen"),
            summary="door, hammer and pen of the Adroit hand, with corrected rewards",
        ),
        Suite(
            "adroit-relocate",
            ("AdroitHandRelocate",),
            summary="the fourth Adroit task, which no algorithm of the paper learns",
        ),
        Suite(
            "dmc",
            tuple(f"dm_control/{task}-v0" for task in _DMC),
            summary="eight tasks of the DeepMind Control Suite",
        ),
        Suite(
            "quick",
            ("Pendulum-v1", "CartPole-v1", "InvertedPendulum-v5", "Acrobot-v1"),
            summary="four small tasks, two with Box and two with Discrete actions: minutes per run",
        ),
    )
}


def suite_of(name: str, only: Collection[str] = ()) -> Suite:
    """A suite by its name, or from a TOML file; with `only` that part of its tasks, under a name of its own."""
    if name in SUITES:
        suite = SUITES[name]
    elif name.endswith(".toml"):
        suite = _read(Path(name))
    else:
        raise InputError(f"unknown suite {name!r}{nearest(name, SUITES)}, or the path of a .toml file")
    tasks, wanted = tuple(map(_with_version, suite.tasks)), tuple(map(_with_version, only))
    for task in wanted:
        if task not in tasks:
            raise InputError(f"suite {suite.name!r} has no task {task!r}{nearest(task, tasks)}")
    part = tuple(task for task in tasks if task in wanted) or tasks
    # A sweep of a part must not take the place of the plan of the whole.
    called = suite.name if part == tasks else _part_name(suite.name, part)
    settings = {_with_version(task): values for task, values in suite.task_settings.items()}
    return dataclasses.replace(suite, name=called, tasks=part, task_settings=settings)


def _part_name(name: str, part: tuple[str, ...]) -> str:
    """With the tasks in it, or a mark of them if that would be too long for the name of a file."""
    full = "-".join((name, *map(slug, part)))
    return full if len(full) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}-{len(part)}-tasks-{digest_of(full)[:8]}"


def _with_version(task: str) -> str:
    """Adroit tasks named without a version: which id is right depends on the release that is installed."""
    if not task.startswith("AdroitHand") or "-v" in task:
        return task
    try:
        from implicitq.envs import adroit
    except ImportError:
        raise InputError(
            f"{task} needs the package gymnasium_robotics; install it with: pip install 'implicitq[adroit]'"
        ) from None
    return adroit.current_id(task)


def action_kind(task: str, action_bound: float | None = None) -> ActionKind:
    """The kind of a task's action space; an unknown task is refused."""
    from implicitq.envs.making import EnvironmentMaker
    from implicitq.envs.spaces import spec_of

    env = EnvironmentMaker(task, action_bound=action_bound)()
    try:
        return spec_of(env.observation_space, env.action_space).action_kind
    finally:
        env.close()


def _read(path: Path) -> Suite:
    data = read_settings(path)
    known = ("name", "tasks", "algorithms", "settings", "task_settings")
    for key in data:
        if key not in known:
            raise InputError(f"{path}: a suite has no {key!r}{nearest(key, known)}")
    tasks = _texts(path, "tasks", data.get("tasks"))
    algorithms = None if "algorithms" not in data else _texts(path, "algorithms", data["algorithms"])
    for name in algorithms or ():
        if name not in configs.KNOWN:
            raise InputError(f"{path}: unknown algorithm {name!r}{nearest(name, configs.ALGORITHMS)}")
    given = data.get("task_settings", {})
    if not isinstance(given, dict):
        raise InputError(f"{path}: task_settings must be tables of hyperparameters by task, got {reprlib.repr(given)}")
    by_task = {task: settings_table(path, f"task_settings.{task}", values) for task, values in given.items()}
    for task in by_task:
        if task not in tasks:
            raise InputError(f"{path}: task_settings for {task!r}, which is not among the tasks")
    settings = settings_table(path, "settings", data.get("settings", {}))
    stem = path.stem if is_file_name(path.stem) else slug(path.stem)
    return Suite(check_file_name(data.get("name", stem), f"{path}: name"), tasks, settings, by_task, algorithms)


def _texts(path: Path, key: str, value: Any) -> tuple[str, ...]:
    good = isinstance(value, list) and value and all(isinstance(item, str) for item in value)
    if not good or len(set(value)) < len(value):
        raise InputError(f"{path}: {key} must be a list of different names, got {reprlib.repr(value)}")
    return tuple(check_name(name, f"{path}: each of {key}") for name in value)


def settings_table(path: Path, key: str, value: Any) -> dict[str, Any]:
    """Hyperparameters as a file gives them; whether an algorithm takes them is seen with its config."""
    if not isinstance(value, dict):
        raise InputError(f"{path}: {key} must be a table of hyperparameters, got {reprlib.repr(value)}")
    reserved = set(configs.RESERVED) & set(value)
    if reserved:
        raise InputError(f"{path}: {key} cannot set {', '.join(sorted(reserved))}, which the sweep sets")
    return {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
