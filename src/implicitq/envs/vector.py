"""Environments side by side, each with its own sequence of seeded episodes, and back again after a stop.

Every episode is seeded from (run seed, stream, environment, episode), so an interrupted episode can be brought back
by resetting to its seed and taking its actions again.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import sys
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from implicitq.envs import spaces
from implicitq.envs.making import EnvironmentMaker, failures_named
from implicitq.types import Array, Spec

TRAINING, EVALUATION, VIDEO = range(3)  # independent streams of episode seeds under one run seed
_REPLAY = "implicitq_replay"


def episode_seed(run_seed: int, stream: int, environment: int, episode: int) -> int:
    """The seed of one episode, independent of everything that happened before it."""
    words = np.random.SeedSequence((run_seed, stream, environment, episode)).generate_state(1)
    return int(words[0]) % 2**31


class Adapter(gym.Wrapper):
    """Flat float32 observations, and resets that can replay the beginning of an episode."""

    def __init__(self, env: gym.Env, index: int = 0) -> None:
        super().__init__(env)
        self._index = index
        size = spaces.flat_size(env.observation_space)
        self.observation_space = gym_spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict]:
        actions = (options or {}).get(_REPLAY)
        observation, info = self.env.reset(seed=seed)
        for action in () if actions is None else actions[self._index]:
            observation, _, terminated, truncated, _ = self.env.step(copy.copy(action))
            if terminated or truncated:  # it did not the first time: the environment is not deterministic
                break
        return self._flat(observation), info

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict]:
        observation, reward, terminated, truncated, _ = self.env.step(action)
        # Infos are not used, and collecting them would cost a vector environment more than the rest of the step.
        return self._flat(observation), float(reward), terminated, truncated, {}

    def _flat(self, observation: Any) -> Array:
        return spaces.flatten_one(self.env.observation_space, observation)


class Step(NamedTuple):
    observations: Array  # [E, O]
    rewards: Array  # [E]
    terminated: Array  # [E]
    truncated: Array  # [E]


class TrainingEnvironments:
    """Environments stepped side by side, each with its own sequence of seeded episodes."""

    def __init__(self, maker: EnvironmentMaker, num_envs: int, vectorization: str, seed: int) -> None:
        if vectorization == "async":
            maker = maker.of_copies()  # a worker process cannot have the original
        makers = [_Adapted(maker, index) for index in range(num_envs)]
        if vectorization == "async":
            # Forking a process that runs JAX threads can hang, so workers start afresh.
            self._vector = AsyncVectorEnv(makers, context="spawn", autoreset_mode=AutoresetMode.DISABLED)
            original = maker()
        else:
            self._vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
            original = self._vector.envs[0].env  # pyright: ignore[reportAttributeAccessIssue]
        self.observation_space: gym.Space = original.observation_space
        self.action_space: gym.Space = original.action_space
        self.spec: Spec = spaces.spec_of(self.observation_space, self.action_space)
        if vectorization == "async":
            original.close()
        self._seed = seed
        self._episodes = np.zeros(num_envs, np.int64)  # number of the current episode, per environment
        self._actions: list[list[Array]] = [[] for _ in range(num_envs)]  # taken in the current episode

    def start(self) -> Array:
        """The first observations: [E, O]."""
        with failures_named("reset"):
            observations, _ = self._vector.reset(seed=self._seeds())
        return np.asarray(observations)

    def step(self, coordinates: Array) -> Step:
        """Take one action, given in agent coordinates [E, D], in every environment."""
        actions = spaces.to_environment(self.action_space, coordinates)
        for taken, action in zip(self._actions, actions, strict=True):
            taken.append(copy.copy(action))  # some environments change the action they are given
        with failures_named("step"):
            observations, rewards, terminated, truncated, _ = self._vector.step(actions)
        return Step(np.asarray(observations), rewards, terminated, truncated)

    def next_episodes(self, which: Array) -> Array:
        """Reset the environments of the mask `which` [E] to their next episode; rows of others stay: [E, O]."""
        self._episodes += which
        for index in np.flatnonzero(which):
            self._actions[index].clear()
        with failures_named("reset"):
            observations, _ = self._vector.reset(seed=self._seeds(), options={"reset_mask": which.copy()})
        return np.asarray(observations)

    def arrays(self) -> dict[str, Array]:
        """All that is needed to bring the environments back."""
        empty = np.zeros((0, *(self.action_space.shape or ())), self.action_space.dtype)
        actions = {f"actions.{index}": np.stack(taken) if taken else empty for index, taken in enumerate(self._actions)}
        return {"episodes": self._episodes.copy(), **actions}

    def restore(self, arrays: dict[str, Array]) -> Array:
        """Inverse of `arrays`: reset to the seeds of the current episodes and take their actions again: [E, O]."""
        self._episodes = np.array(arrays["episodes"])
        self._actions = [list(arrays[f"actions.{index}"]) for index in range(len(self._episodes))]
        observations, _ = self._vector.reset(seed=self._seeds(), options={_REPLAY: self._actions})
        return np.asarray(observations)

    def close(self) -> None:
        self._vector.close()

    def _seeds(self) -> list[int | None]:
        return [episode_seed(self._seed, TRAINING, index, int(episode)) for index, episode in enumerate(self._episodes)]


class _Adapted:
    """A maker of one adapted environment; a class, so that it can travel to a worker process."""

    def __init__(self, maker: EnvironmentMaker, index: int) -> None:
        self._maker, self._index = maker, index

    def __call__(self) -> Adapter:
        if multiprocessing.parent_process() is not None:
            _leave_group()
        env = self._maker()
        spaces.spec_of(env.observation_space, env.action_space)
        return Adapter(env, self._index)


def _leave_group() -> None:
    """Ctrl-C in a terminal and the SIGTERM of `timeout` go to a whole group of processes; a worker has to live until
    the checkpoint is written."""
    if sys.platform == "win32":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        os.setpgid(0, 0)
