"""Gymnasium environments: making them, stepping many side by side, and bringing them back after a stop.

Every episode is seeded from (run seed, stream, environment, episode), so an interrupted episode can be brought back
by resetting to its seed and taking its actions again.
"""

from __future__ import annotations

import copy
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from implicitq import spaces
from implicitq.checks import nearest
from implicitq.types import Array, InputError, Spec

EnvironmentSource = str | gym.Env | Callable[[], gym.Env]

TRAINING, EVALUATION, VIDEO = range(3)  # independent streams of episode seeds under one run seed
_REPLAY = "implicitq_replay"

# Tasks whose package registers them on import: prefix of the id -> (module, extra of ours).
_PACKAGES = {
    "AdroitHand": ("gymnasium_robotics", "adroit"),
    "implicitq/AdroitHand": ("implicitq.adroit", "adroit"),  # with corrected rewards
}


def episode_seed(run_seed: int, stream: int, environment: int, episode: int) -> int:
    """The seed of one episode, independent of everything that happened before it."""
    words = np.random.SeedSequence((run_seed, stream, environment, episode)).generate_state(1)
    return int(words[0]) % 2**31


class EnvironmentMaker:
    """Makes equal environments from an id, an environment object or a function."""

    def __init__(self, source: EnvironmentSource, original_first: bool = True) -> None:
        """An object is given out itself first, then copies of it; only copies if not `original_first`."""
        if not isinstance(source, str | gym.Env) and not callable(source):
            raise InputError(f"env must be an id, a gymnasium.Env or a function that makes one, got {source!r}")
        self._source = source
        self._give_original = original_first

    def __call__(self, **arguments: Any) -> gym.Env:
        """`arguments` go to `gymnasium.make`; only ids take any."""
        if isinstance(self._source, str):
            return _make(self._source, **arguments)
        if not isinstance(self._source, gym.Env):
            made = self._source()
            if not isinstance(made, gym.Env):
                raise InputError(f"the env function must return a gymnasium.Env, got {type(made).__name__}")
            return made
        if self._give_original:
            self._give_original = False
            return self._source
        return _duplicate(self._source)

    def of_copies(self) -> EnvironmentMaker:
        """The same, without the original object."""
        return EnvironmentMaker(self._source, original_first=False)

    @property
    def name(self) -> str:
        """The id, if there is one; a run can only be resumed by the command line if there is."""
        if isinstance(self._source, str):
            return self._source
        known = getattr(self._source, "spec", None)
        if known is None:
            return f"object:{getattr(self._source, '__name__', type(self._source).__name__)}"
        # With other wrappers or arguments than its id stands for, the id alone would bring back something else.
        plain = copy.deepcopy(known)
        plain.kwargs.pop("render_mode", None)
        return known.id if gym.registry.get(known.id) == plain else f"object:{known.id}"


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


@contextmanager
def failures_named(doing: str) -> Iterator[None]:
    """Say what the environment was doing when it failed, and where; the error itself is the cause."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"the environment failed in {doing}: {type(error).__name__}: {error} "
            f"({Path(place.filename).name}, line {place.lineno})"
        ) from error


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


def _make(name: str, **arguments: Any) -> gym.Env:
    """`gymnasium.make` with errors that help."""
    for prefix, (module, extra) in _PACKAGES.items():
        if name.startswith(prefix):
            try:
                gym.register_envs(importlib.import_module(module))
            except ImportError:
                raise InputError(
                    f"{name} needs the package gymnasium_robotics; install it with: pip install 'implicitq[{extra}]'"
                ) from None
    entry = gym.registry.get(name)
    if "AdroitHand" in name or (entry is not None and "mujoco" in str(entry.entry_point)):
        _log_mujoco_warnings()
    try:
        return gym.make(name, **arguments)
    except gym.error.DependencyNotInstalled as error:
        raise InputError(f"{name} needs a package that is missing: {error}") from None
    except (
        gym.error.UnregisteredEnv,
        gym.error.DeprecatedEnv,
        gym.error.Error,
        ModuleNotFoundError,
    ) as error:
        known = sorted(gym.registry)
        if name in known:
            raise InputError(f"{name} cannot be made: {error}") from None
        raise InputError(f"unknown environment {name!r}{_guess(name, known)}") from None


def _log_mujoco_warnings() -> None:
    """By Python's logging: MuJoCo prints them once per environment, and to a file in the working folder."""
    try:
        import mujoco
    except ImportError:
        return
    # The stubs of MuJoCo lack these two.
    if mujoco.get_mju_user_warning() is None:  # pyright: ignore[reportAttributeAccessIssue]
        mujoco.set_mju_user_warning(_log_mujoco_warning)  # pyright: ignore[reportAttributeAccessIssue]


def _log_mujoco_warning(message: str) -> None:
    # Deprecations are about model files, which are not the user's. (An exception here would end the process.)
    level = logging.DEBUG if "deprecated" in message else logging.WARNING
    logging.getLogger("implicitq.mujoco").log(level, "MuJoCo: %s", message)


def _guess(name: str, known: list[str]) -> str:
    hint = nearest(name, known).split(" known: ")[0]
    return hint if len(hint) > 1 else f"; gymnasium knows {len(known)}, such as HalfCheetah-v5 and CartPole-v1"


def _duplicate(env: gym.Env) -> gym.Env:
    try:
        return copy.deepcopy(env)
    except Exception:
        pass
    try:
        if env.spec is not None:
            return gym.make(env.spec)
    except Exception:
        pass
    raise InputError(
        f"{env} can neither be copied nor made again from its spec, and more than one is needed (evaluation has "
        "environments of its own); give a function that makes the environment instead of the object"
    )
