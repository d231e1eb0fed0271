"""One environment as training and evaluation see it: flat observations that fit their space, failures in a sentence."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gym_spaces

from implicitq.envs import spaces
from implicitq.envs.making import EnvironmentFailed, failures_named
from implicitq.types import Array, InputError


class Adapter:
    """Flat float32 observations, and resets that can replay the beginning of an episode."""

    def __init__(self, env: gym.Env, name: str = "the environment") -> None:
        """`name` stands in the sentences about it."""
        self.env, self._name = env, name
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.spec = spaces.spec_of(self.observation_space, self.action_space)

    def reset(self, seed: int, actions: Iterable[Any] = ()) -> Array:
        """Begin the episode of this seed and take `actions` in it: [O]."""
        with failures_named("reset", self._name):
            observation, _ = self.env.reset(seed=seed)
        for action in actions:
            with failures_named("repeating the steps of its episode", self._name):
                observation, _, terminated, truncated, _ = self.env.step(copy.copy(action))
            if terminated or truncated:  # it did not the first time: the environment is not deterministic
                break
        return self._flat(observation, "reset")

    def step(self, action: Any) -> tuple[Array, float, bool, bool]:
        """Observation [O], reward, terminated, truncated."""
        with failures_named("step", self._name):
            observation, reward, terminated, truncated, _ = self.env.step(action)
            given = float(reward), bool(terminated), bool(truncated)
        return self._flat(observation, "step"), *given

    def close(self) -> None:
        """Never raises: by now there is nothing left to lose, and an earlier error is the one to hear of."""
        try:
            with failures_named("close", self._name):
                self.env.close()
        except InputError as error:
            warnings.warn(str(error), stacklevel=2)

    def _flat(self, observation: Any, call: str) -> Array:
        with failures_named(call, self._name):
            wrong = _misfit(self.observation_space, observation)
            try:
                if not wrong:
                    return spaces.flatten_one(self.observation_space, observation)
            except InputError as error:
                wrong = str(error)
            raise EnvironmentFailed(f"{self._name} gave an observation in {call} that is not of its space: {wrong}")


def _misfit(space: gym.Space, observation: Any, part: str = "") -> str:
    """What came and what was declared, of the first part that differs; empty if the shapes fit."""
    match space:
        case gym_spaces.Dict():
            if not isinstance(observation, dict) or set(space.keys()) - set(observation):
                came = sorted(map(str, observation)) if isinstance(observation, dict) else type(observation).__name__
                return f"got {came}{part}, declared is a dict of {sorted(map(str, space.keys()))}"
            found = (_misfit(inner, observation[name], f"{part} in {name!r}") for name, inner in space.items())
        case gym_spaces.Tuple():
            if not isinstance(observation, tuple | list) or len(observation) != len(space):
                length = f" of {len(observation)}" if isinstance(observation, tuple | list) else ""
                return f"got a {type(observation).__name__}{length}{part}, declared is a tuple of {len(space)}"
            pairs = enumerate(zip(space, observation, strict=True))
            found = (_misfit(inner, item, f"{part} at {number}") for number, (inner, item) in pairs)
        case _:
            shape = np.shape(observation)
            return "" if shape == space.shape else f"got shape {shape}{part}, declared is {space.shape}"
    return next((text for text in found if text), "")
