"""One environment as training and evaluation see it: flat observations that fit their space, failures in a sentence."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gym_spaces

from implicitq.envs import masks, spaces
from implicitq.envs.making import EnvironmentFailed, failures_named
from implicitq.envs.statistics import State, Statistics
from implicitq.types import Array, InputError
from implicitq.validation import brief

_OF_RESET = ("observation", "info")
_OF_STEP = ("observation", "reward", "terminated", "truncated", "info")


class Adapter:
    """Flat observations, and resets that can replay the beginning of an episode.

    With every observation comes the mask of the actions that it allows, [D, N], or None if the environment gives none.
    """

    def __init__(self, env: gym.Env, name: str = "the environment") -> None:
        """`name` stands in the sentences about it."""
        self.env, self._name = env, name
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.spec = spaces.spec_of(self.observation_space, self.action_space)
        self.statistics = Statistics(env)
        self._mask_method = masks.method_of(env)
        self._masked: bool | None = None  # known from the first reset on

    def reset(
        self, seed: int, actions: Iterable[Any] = (), statistics: State | None = None
    ) -> tuple[Array, Array | None]:
        """Begin the episode of this seed and take `actions` in it: [O], and the mask.

        With `statistics`, those of its wrappers are made these first.
        """
        if statistics is not None:
            self.statistics.load(statistics)
        with failures_named("reset", self._name):
            observation, info = self._parts("reset", self.env.reset(seed=seed), _OF_RESET)
        for action in actions:
            with failures_named("repeating the steps of its episode", self._name):
                observation, _, terminated, truncated, info = self.env.step(copy.copy(action))
            if terminated or truncated:  # it did not the first time: the environment is not deterministic
                break
        return self._flat(observation, "reset"), self._mask(info, "reset")

    def step(self, action: Any) -> tuple[Array, float, bool, bool, Array | None]:
        """Observation [O], reward, terminated, truncated, mask."""
        with failures_named("step", self._name):
            found = self._parts("step", self.env.step(action), _OF_STEP)
            observation, reward, terminated, truncated, info = found
            given = self._reward(reward), bool(terminated), bool(truncated)
        return self._flat(observation, "step"), *given, self._mask(info, "step", given[1])

    def close(self) -> None:
        """Never raises: by now there is nothing left to lose, and an earlier error is the one to hear of."""
        try:
            with failures_named("close", self._name):
                self.env.close()
        except InputError as error:
            warnings.warn(str(error), stacklevel=2)

    def _parts(self, call: str, found: Any, wanted: Sequence[str]) -> Any:
        """What a call of the environment gave, if it has as many parts as Gymnasium wants."""
        several = isinstance(found, tuple | list)
        if several and len(found) == len(wanted):
            return found
        came = f"{len(found)} values" if several else type(found).__name__
        told = f"Gymnasium wants {len(wanted)}: {', '.join(wanted)}"
        raise EnvironmentFailed(f"{self._name} gave {came} in {call}; {told}")

    def _reward(self, reward: Any) -> float:
        try:
            if not isinstance(reward, str):
                return float(reward)
        except (TypeError, ValueError):
            pass
        raise EnvironmentFailed(f"{self._name} gave the reward {brief(reward)} in step; it must be a number")

    def _flat(self, observation: Any, call: str) -> Array:
        with failures_named(call, self._name):
            wrong = _misfit(self.observation_space, observation)
            try:
                if not wrong:
                    return spaces.flatten_one(self.observation_space, observation)
            except InputError as error:
                wrong = str(error)
            raise EnvironmentFailed(f"{self._name} gave an observation in {call} that is not of its space: {wrong}")

    def _mask(self, info: dict[str, Any], call: str, terminated: bool = False) -> Array | None:
        """An environment gives masks always or never; where nothing can be done any more, all is allowed."""
        categories = self.spec.categories
        if categories is None or (terminated and not self._masked):
            return None
        if terminated:
            return masks.all_allowed(categories)
        with failures_named(call, self._name):
            given = masks.given(info, self._mask_method)
            if self._masked is None:
                self._masked = given is not None
            if self._masked != (given is not None):
                came, before = ("no", "one") if self._masked else ("an", "none")
                raise EnvironmentFailed(
                    f"{self._name} gave {came} action mask in {call}, but {before} in its first reset"
                )
            if given is None:
                return None
            try:
                return masks.read(given, categories, 1)[0]
            except InputError as error:
                raise EnvironmentFailed(f"the action mask of {self._name} in {call} cannot be used: {error}") from None


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
