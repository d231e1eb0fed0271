"""Environments side by side, each with its own sequence of seeded episodes, and back again after a stop.

Every episode is seeded from (run seed, stream, environment, episode), so an interrupted episode can be brought back
by resetting to its seed and taking its actions again. Running statistics of wrappers, which no seed fixes, are kept as
they were before the episode.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np

from implicitq.envs import spaces, statistics
from implicitq.envs.making import EnvironmentFailed, EnvironmentMaker
from implicitq.envs.statistics import Shared, State
from implicitq.envs.workers import InProcess, OwnProcess, Worker
from implicitq.types import Array, InputError, Spec

TRAINING, EVALUATION, VIDEO = range(3)  # independent streams of episode seeds under one run seed


def episode_seed(run_seed: int, stream: int, environment: int, episode: int) -> int:
    """The seed of one episode, independent of everything that happened before it."""
    words = np.random.SeedSequence((run_seed, stream, environment, episode)).generate_state(1)
    return int(words[0]) % 2**31


class Step(NamedTuple):
    observations: Array  # [E, O]
    rewards: Array  # [E]
    terminated: Array  # [E]
    truncated: Array  # [E]
    failed: Array  # [E]: these made no step and need `restart`; their other entries mean nothing


class TrainingEnvironments:
    """Environments stepped side by side, each with its own sequence of seeded episodes.

    With `on_error` "restart", one that raises, dies or hangs is made anew and begins its next episode; with "stop",
    and if it fails again before it has made a step, its `EnvironmentFailed` is raised.
    """

    def __init__(
        self,
        maker: EnvironmentMaker,
        num_envs: int,
        vectorization: str,
        seed: int,
        on_error: Literal["stop", "restart"] = "stop",
        timeout: float | None = None,
    ) -> None:
        """`timeout`: seconds for any call of an environment that has a process of its own (`vectorization` async)."""
        self._apart = vectorization == "async"
        self._maker = maker.of_copies() if self._apart else maker  # a worker process cannot have the original
        self._timeout, self._restarting, self._seed = timeout, on_error == "restart", seed
        self._names = ["the environment" if num_envs == 1 else f"environment {index}" for index in range(num_envs)]
        self._workers: list[Worker] = []
        try:
            for index in range(num_envs):
                self._workers.append(self._worker(index))
            for worker in self._workers:
                worker.ready()
            self.observation_space: gym.Space = self._workers[0].observation_space
            self.action_space: gym.Space = self._workers[0].action_space
            self.spec: Spec = spaces.spec_of(self.observation_space, self.action_space)
            self._check_alike()
        except BaseException:
            self.close()
            raise
        self._to_environment = spaces.to_environment(self.action_space)
        self.restarts = 0
        self._fresh = np.zeros(num_envs, bool)  # made anew, and no step yet
        self._episodes = np.zeros(num_envs, np.int64)  # number of the current episode, per environment
        self._actions: list[list[Array]] = [[] for _ in range(num_envs)]  # taken in the current episode
        self._before: list[State] = [{} for _ in range(num_envs)]  # statistics of wrappers before the current episode
        self._given: dict[int, State] = {}  # what these are to be before the next one, where they are to be others
        self._observations = np.zeros((num_envs, self.spec.observation_size), self.spec.observation_dtype)
        self._rewards = np.zeros(num_envs)
        self._terminated, self._truncated = np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        self._masks: dict[int, Array] = {}  # of those that give any

    @property
    def masks(self) -> Array | None:
        """Which actions the newest observations allow, [E, D, N]; None if the environments give no action masks."""
        return np.stack([self._masks[index] for index in range(len(self._workers))]) if self._masks else None

    @property
    def statistics(self) -> Shared:
        """Running statistics of the wrappers, merged over all environments."""
        return statistics.merged([worker.statistics for worker in self._workers])

    def begin_with(self, shared: Shared) -> None:
        """Begin with statistics of an earlier training; before `start`."""
        states = [worker.statistics for worker in self._workers]
        for sentence in statistics.absent(states[0], shared):
            warnings.warn(sentence, stacklevel=2)
        self._given = {
            index: statistics.fitted(state, shared, 1 / len(states)) for index, state in enumerate(states) if state
        }

    def start(self) -> Array:
        """The first observations: [E, O]."""
        self._reset(range(len(self._workers)))
        return self._observations.copy()

    def step(self, coordinates: Array, which: Array | None = None) -> Step:
        """Take one action, given in agent coordinates [E, D], in every environment, or those of the mask `which`.

        Rows of others are those of their last step.
        """
        actions = self._to_environment(coordinates)
        indices = range(len(actions)) if which is None else np.flatnonzero(which).tolist()
        for index in indices:
            self._actions[index].append(copy.copy(actions[index]))  # some environments change the action they are given
            self._workers[index].ask("step", actions[index])
        answers, failures = self._answers(indices)
        for index, (observation, reward, terminated, truncated, mask) in answers.items():
            self._observations[index], self._rewards[index] = observation, reward
            self._note_mask(index, mask)
            self._terminated[index], self._truncated[index] = terminated, truncated
            self._fresh[index] = False
        failed = np.zeros(len(self._workers), bool)
        failed[list(failures)] = True
        self._failures = failures
        ends = self._terminated.copy(), self._truncated.copy()
        return Step(self._observations.copy(), self._rewards.copy(), *ends, failed)

    def restart(self, which: Array) -> Array:
        """Make those that failed in the last step anew, and begin their next episodes; rows of others stay: [E, O]."""
        self._begin_anew({index: self._failures[index] for index in np.flatnonzero(which).tolist()})
        return self._observations.copy()

    def next_episodes(self, which: Array) -> Array:
        """Reset the environments of the mask `which` [E] to their next episode; rows of others stay: [E, O]."""
        self._episodes += which
        for index in np.flatnonzero(which):
            self._actions[index].clear()
        self._reset(np.flatnonzero(which).tolist())
        return self._observations.copy()

    def arrays(self) -> dict[str, Array]:
        """All that is needed to bring the environments back."""
        empty = np.zeros((0, *(self.action_space.shape or ())), self.action_space.dtype)
        actions = {f"actions.{index}": np.stack(taken) if taken else empty for index, taken in enumerate(self._actions)}
        before = {
            f"statistics.{index}.{name}": array
            for index, state in enumerate(self._before)
            for name, array in statistics.packed(state).items()
        }
        return {"episodes": self._episodes.copy(), **actions, **before}

    def restore(self, arrays: dict[str, Array]) -> Array:
        """Inverse of `arrays`: reset to the seeds of the current episodes and take their actions again: [E, O]."""
        self._episodes = np.array(arrays["episodes"])
        self._actions = [list(arrays[f"actions.{index}"]) for index in range(len(self._episodes))]
        self._restore_statistics(arrays)
        self._reset(range(len(self._workers)), again_if_failed=True)
        return self._observations.copy()

    def _restore_statistics(self, arrays: dict[str, Array]) -> None:
        for index, worker in enumerate(self._workers):
            prefix = f"statistics.{index}."
            saved = statistics.unpacked(
                {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            )
            then, now = (statistics.keys(state) for state in (saved, worker.statistics))
            if saved and then != now:
                raise EnvironmentFailed(
                    f"the run was trained with the statistics of {', '.join(then)}, but its environment has "
                    f"{', '.join(now) or 'none'}"
                )
            if now and not saved:
                warnings.warn(
                    f"the checkpoint is of a version that kept no statistics of {', '.join(now)}: they begin anew, so "
                    "the run will differ from one that was never interrupted",
                    stacklevel=2,
                )
            if saved:
                self._given[index] = saved

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _worker(self, index: int) -> Worker:
        if self._apart:
            return OwnProcess(self._maker, f"environment {index}", self._timeout)
        return InProcess(self._maker, self._names[index])

    def _check_alike(self) -> None:
        for index, worker in enumerate(self._workers):
            size = spaces.flat_size(worker.observation_space)
            if size != self.spec.observation_size or worker.action_space != self.action_space:
                raise InputError(
                    f"all environments must have the same spaces: environment {index} has {worker.observation_space} "
                    f"and {worker.action_space}, environment 0 {self.observation_space} and {self.action_space}"
                )

    def _reset(self, indices: Iterable[int], again_if_failed: bool = False) -> None:
        """Reset to the seeds of the current episodes, and take their actions again.

        Those that fail go to their next episode when they are made anew; or to the same again.
        """
        for index in indices:
            seed = episode_seed(self._seed, TRAINING, int(index), int(self._episodes[index]))
            given = self._given.pop(index, None)
            self._before[index] = self._workers[index].statistics if given is None else given
            self._workers[index].ask("reset", seed, self._actions[index], given)
        answers, failures = self._answers(indices)
        for index, (observation, mask) in answers.items():
            self._observations[index] = observation
            self._note_mask(index, mask)
        self._begin_anew(failures, 0 if again_if_failed else 1)
        if self._masks and len(self._masks) < len(self._workers):
            raise InputError("all environments must give action masks, or none of them")

    def _note_mask(self, index: int, mask: Array | None) -> None:
        if mask is not None:
            self._masks[index] = mask
        else:
            self._masks.pop(index, None)

    def _answers(self, indices: Iterable[int]) -> tuple[dict[int, Any], dict[int, EnvironmentFailed]]:
        """The answers of those that were asked, and why others gave none; raises what no restart can help."""
        answers, failures, errors = {}, {}, []
        for index in indices:
            try:
                answers[index] = self._workers[index].answer()
            except EnvironmentFailed as error:
                failures[index] = error
                if self._fresh[index]:
                    errors.append(EnvironmentFailed(f"{error}, right after it was made anew"))
                elif not self._restarting:
                    errors.append(error)
            except InputError as error:
                errors.append(error)
        if errors:  # only now, when nobody is left with an answer that was not taken
            raise errors[0]
        return answers, failures

    def _begin_anew(self, failures: dict[int, EnvironmentFailed], episodes_on: int = 1) -> None:
        """Replace the environments that failed, and begin the episode `episodes_on` after their current one."""
        for index, failure in failures.items():
            self._given[index] = self._workers[index].statistics if episodes_on else self._before[index]
            self._workers[index].close()
            try:
                self._workers[index] = self._worker(index)
                self._workers[index].ready()
            except InputError as error:
                raise EnvironmentFailed(f"{failure}; and making it anew failed: {error}") from error
            self._fresh[index] = True
            if episodes_on:
                self._episodes[index] += episodes_on
                self._actions[index].clear()
            self.restarts += 1
            warnings.warn(
                f"{failure}; it was made anew and goes on with its episode {self._episodes[index]} "
                f"(restart {self.restarts} of this run)",
                stacklevel=2,
            )
        if failures:
            self._check_alike()
            self._reset(list(failures))
