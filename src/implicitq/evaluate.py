"""Evaluation: whole episodes with the deterministic policy, many in lockstep with one batched call per step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from implicitq.envs import spaces
from implicitq.envs.adapter import Adapter
from implicitq.envs.making import EnvironmentMaker, screenless
from implicitq.envs.statistics import Shared
from implicitq.envs.vector import EVALUATION, episode_seed
from implicitq.types import Array, Evaluation, InputError, Spec

LONGEST_EPISODE = 100_000  # steps; an environment without an end would hang the run
# Packages whose windows need a screen: without one pygame shows nothing, and MuJoCo ends the whole process.
_DRAWN = ("gymnasium.envs.", "gymnasium_robotics.", "shimmy.")


def refuse_endless(length: int) -> None:
    """Refuse an episode that has not ended after `length` steps, if that is more than any should take."""
    if length >= LONGEST_EPISODE:
        raise InputError(
            f"an episode has not ended after {LONGEST_EPISODE:,} steps; give the environment a time limit, for "
            "instance with gymnasium.wrappers.TimeLimit"
        )


def _with_window(maker: EnvironmentMaker) -> gym.Env:
    env = maker(render_mode="human")
    if env.render_mode != "human":
        env.close()
        raise InputError(
            f"the environment opens no window: its render_mode is {env.render_mode!r}, not 'human'; only one that is "
            "given by its id, or made with render_mode='human', can"
        )
    if screenless() and _draws_on_a_screen(env):
        env.close()
        raise InputError(
            "a window needs a screen, and there is none here: neither DISPLAY nor WAYLAND_DISPLAY is set; "
            "`implicitq video` writes a film instead"
        )
    return env


def _draws_on_a_screen(env: gym.Env) -> bool:
    """Whether it opens a window, as far as is known: elsewhere, `human` may mean text on the terminal."""
    pictures = env.unwrapped.render_mode != "human"  # which a wrapper shows
    return pictures or any(base.__module__.startswith(_DRAWN) for base in type(env.unwrapped).__mro__)


class Evaluator:
    """Environments of its own, made once and reset to fresh seeds for every evaluation."""

    def __init__(self, maker: EnvironmentMaker, episodes: int, seed: int, *, shown: bool = False) -> None:
        """`shown`: play one episode after the other in a window, instead of all at once."""
        self._seed, self._rounds = seed, episodes if shown else 1
        self._envs: list[Adapter] = []
        try:
            for _ in range(episodes // self._rounds):
                self._envs.append(Adapter(_with_window(maker) if shown else maker()))
        except BaseException:
            self.close()
            raise
        self.observation_space = self._envs[0].observation_space
        self.action_space = self._envs[0].action_space
        self._to_environment = spaces.to_environment(self.action_space)
        self.spec: Spec = self._envs[0].spec

    def run(self, act: Callable[..., Any], step: int, statistics: Shared | None = None) -> Evaluation:
        """`act` maps observations [E, O] to coordinates [E, D]; `step` is recorded and picks the seeds.

        Where the environments give action masks, it is called with these besides: [E, D, N]. Their wrappers use the
        `statistics` of training.
        """
        for sentence in self._envs[0].statistics.misfits(statistics or {}):
            warnings.warn(sentence, stacklevel=2)
        for env in self._envs:
            env.statistics.adopt(statistics or {})
        done = [self._play(act, step, number * len(self._envs)) for number in range(self._rounds)]
        returns, lengths = (np.concatenate(column) for column in zip(*done, strict=True))
        if not np.isfinite(returns).all():
            raise InputError(
                f"an evaluation episode at step {step} returned {returns.tolist()}; rewards must be finite"
            )
        return Evaluation(tuple(returns.tolist()), tuple(lengths.tolist()), step)

    def _play(self, act: Callable[..., Any], step: int, first: int) -> tuple[Array, Array]:
        """Returns and lengths of one episode in every environment, in lockstep, numbered from `first`: [E], [E]."""
        seeds = [episode_seed(self._seed, EVALUATION, first + index, step) for index in range(len(self._envs))]
        begun, first_masks = zip(*(env.reset(seed) for env, seed in zip(self._envs, seeds, strict=True)), strict=True)
        observations, masks = np.stack(begun), list(first_masks)
        returns, lengths = np.zeros(len(self._envs)), np.zeros(len(self._envs), int)
        running = list(range(len(self._envs)))
        while running:
            # Finished episodes stay in the batch, so that it keeps its shape and nothing is compiled again.
            allowed = () if masks[0] is None else (np.stack(masks),)
            actions = self._to_environment(np.asarray(act(observations, *allowed)))
            still = []
            for index in running:
                observation, reward, terminated, truncated, masks[index] = self._envs[index].step(actions[index])
                observations[index] = observation
                returns[index] += reward
                lengths[index] += 1
                if not (terminated or truncated):
                    still.append(index)
            running = still
            if running:
                refuse_endless(int(lengths[running[0]]))
        return returns, lengths

    def close(self) -> None:
        for env in self._envs:
            env.close()
