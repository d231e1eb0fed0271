"""Scores of the uniformly random policy: the zero of every normalised score. Measured, and stored with versions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from implicitq.machine import version_of
from implicitq.runs.files import LARGEST_RETURN, check_name, read_json, turn_in, write_json
from implicitq.runs.study_table import ABOUT, read_extra
from implicitq.types import InputError

FILE = "random-scores.json"
EPISODES = 100
PACKAGES = ("gymnasium", "mujoco", "gymnasium-robotics")  # what the returns of a random policy depend on


def environment_versions() -> dict[str, str | None]:
    return {package: version_of(package) for package in PACKAGES}


def measure(task: str, episodes: int = EPISODES, seed: int = 0, action_bound: float | None = None) -> dict[str, Any]:
    """Undiscounted returns of whole episodes with uniform actions, within `action_bound` where they have no bounds."""
    from implicitq.envs import masks
    from implicitq.envs.making import EnvironmentMaker, failures_named
    from implicitq.envs.statistics import Statistics
    from implicitq.envs.vector import EVALUATION, episode_seed
    from implicitq.evaluate import refuse_endless

    env = EnvironmentMaker(task, action_bound=action_bound)()
    env.action_space.seed(seed)
    Statistics(env).adopt({})  # so that rewards are counted as in evaluations
    mask_method = masks.method_of(env)
    returns = np.zeros(episodes)
    try:
        for episode in range(episodes):
            with failures_named("an episode of random actions"):
                _, info = env.reset(seed=episode_seed(seed, EVALUATION, episode, 0))
                for length in itertools.count(1):
                    action = masks.sample(env.action_space, info, mask_method)
                    _, reward, terminated, truncated, info = env.step(action)
                    returns[episode] += float(reward)
                    if terminated or truncated:
                        break
                    refuse_endless(length)
    finally:
        env.close()
    return {
        "mean": float(returns.mean()),
        "std": float(returns.std()),
        "episodes": episodes,
        "seed": seed,
        "versions": environment_versions(),
        **({} if action_bound is None else {"action_bound": action_bound}),
    }


def ensure(
    out: Path,
    tasks: Iterable[str],
    *,
    bounds: Mapping[str, float | None] = {},
    episodes: int = EPISODES,
    again: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, dict[str, Any]]:
    """Measure what is not stored below `out` yet, or was measured with other versions or bounds; gives all.

    `bounds` has the `action_bound` of tasks that have one.
    """
    if episodes < 1:
        raise InputError(f"episodes must be a whole number of at least 1, got {episodes}")
    known, versions = read(out), environment_versions()
    for task in tasks:
        entry, bound = known.get(task), bounds.get(task)
        if again or entry is None or entry["versions"] != versions or entry.get("action_bound") != bound:
            tell(f"random policy on {task}: {episodes} episodes")
            entry = measure(task, episodes, action_bound=bound)
            with turn_in(out):  # others may have measured or collected meanwhile
                known = {**read(out), task: entry}
                write_json(out / FILE, known)
    return known


def read(out: Path) -> dict[str, dict[str, Any]]:
    """What was measured so far, a study table's first: task -> mean, std, episodes, seed, versions."""
    path = out / FILE
    kept = _checked(out / ABOUT, read_extra(out, "random_scores") or {})
    return {**kept, **_checked(path, read_json(path))} if path.exists() or path.is_symlink() else kept


def _checked(path: Path, data: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(data, dict) or not all(map(_is_entry, data.values())):
        raise InputError(f"{path} holds no random-policy scores; remove it and measure again")
    for task in data:
        check_name(task, f"{path}: a task")
    return data


def _is_entry(entry: Any) -> bool:
    match entry:
        case {"mean": int() | float() as mean, "std": int() | float() as std, "episodes": int(), "versions": {}}:
            return abs(mean) <= LARGEST_RETURN and 0 <= std <= LARGEST_RETURN
    return False
