"""Adroit tasks as they were meant: implicitq/AdroitHandDoor-v1, ...Hammer-v1, ...Relocate-v1, ...Pen-v1.

In gymnasium-robotics up to 1.4.2 the dense reward of these three pays 0.1 |palm - object|: it pays the hand to move
away from the handle, the hammer and the ball. The tasks' authors have it with a minus. Their pen task lasted 100 steps
and ended when the pen dropped, where the package's lasts 200 and goes on. Importing this module registers the corrected
ids; `current_id` prefers the fixed -v2 ids of a later release where one is installed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium as gym
import gymnasium_robotics  # pyright: ignore[reportMissingImports]
import numpy as np

_WEIGHT = 0.1
_HORIZON = 200

# Where each task has its object: the grasping site of the palm, and the attribute path of the object's position.
_TASKS: dict[str, tuple[str, str, str]] = {
    "AdroitHandDoor": ("grasp_site_id", "site_xpos", "handle_site_id"),
    "AdroitHandHammer": ("S_grasp_site_id", "xpos", "obj_body_id"),
    "AdroitHandRelocate": ("S_grasp_site_id", "xpos", "obj_body_id"),
}
_FIXED, _FLAWED = "v2", "v1"
_PEN, _PEN_HORIZON = "AdroitHandPen", 100
_DROPPED = 0.075  # metres: a pen below this height has left the hand

gym.register_envs(gymnasium_robotics)


class ReachCorrected(gym.Wrapper):
    """Turns +0.1 |palm - object| of the reward into -0.1 |palm - object|; for dense rewards."""

    def __init__(self, env: gym.Env, task: str) -> None:
        super().__init__(env)
        self._palm, self._table, self._object = _TASKS[task]

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward) - 2 * _WEIGHT * self.reach_distance(), terminated, truncated, info

    def reach_distance(self) -> float:
        """From the palm to what it should get to, in metres, in the state after the step."""
        raw: Any = self.unwrapped
        palm = raw.data.site_xpos[getattr(raw, self._palm)]
        target = getattr(raw.data, self._table)[getattr(raw, self._object)]
        return float(np.linalg.norm(palm - target))


class EndsWhenDropped(gym.Wrapper):
    """The pen task ends with the step in which the pen drops."""

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or self.pen_height() < _DROPPED, truncated, info

    def pen_height(self) -> float:
        raw: Any = self.unwrapped
        return float(raw.data.xpos[raw.obj_body_id][2])


def current_id(task: str) -> str:
    """The id to use for a task named without a version: upstream's if it is right, ours otherwise."""
    if task == _PEN:
        return f"implicitq/{_PEN}-{_FLAWED}"
    if task not in _TASKS:
        return f"{task}-v1"
    fixed = f"{task}-{_FIXED}"
    return fixed if fixed in gym.registry else f"implicitq/{task}-{_FLAWED}"


def _maker(task: str, correct: Callable[[gym.Env], gym.Env]) -> Callable[..., gym.Env]:
    def make(**arguments: Any) -> gym.Env:
        return correct(gym.make(f"{task}-{_FLAWED}", disable_env_checker=True, **arguments).unwrapped)

    return make


for _task in _TASKS:
    _corrected = functools.partial(ReachCorrected, task=_task)
    gym.register(f"implicitq/{_task}-{_FLAWED}", _maker(_task, _corrected), max_episode_steps=_HORIZON)
gym.register(f"implicitq/{_PEN}-{_FLAWED}", _maker(_PEN, EndsWhenDropped), max_episode_steps=_PEN_HORIZON)
