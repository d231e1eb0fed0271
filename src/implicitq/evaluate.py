"""Evaluation: whole episodes with the deterministic policy, many in lockstep with one batched call per step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from implicitq.envs import spaces
from implicitq.envs.adapter import Adapter
from implicitq.envs.making import EnvironmentMaker, private_statistics
from implicitq.envs.vector import EVALUATION, episode_seed
from implicitq.types import Evaluation, InputError, Spec

LONGEST_EPISODE = 100_000  # steps; an environment without an end would hang the run


def refuse_endless(length: int) -> None:
    """Refuse an episode that has not ended after `length` steps, if that is more than any should take."""
    if length >= LONGEST_EPISODE:
        raise InputError(
            f"an episode has not ended after {LONGEST_EPISODE:,} steps; give the environment a time limit, for "
            "instance with gymnasium.wrappers.TimeLimit"
        )


class Evaluator:
    """Environments of its own, made once and reset to fresh seeds for every evaluation."""

    def __init__(self, maker: EnvironmentMaker, episodes: int, seed: int) -> None:
        self._seed = seed
        self._envs: list[Adapter] = []
        try:
            for _ in range(episodes):
                self._envs.append(Adapter(maker()))
        except BaseException:
            self.close()
            raise
        statistics = private_statistics(self._envs[0].env)
        if statistics is not None:
            warnings.warn(statistics, stacklevel=2)
        self.observation_space = self._envs[0].observation_space
        self.action_space = self._envs[0].action_space
        self.spec: Spec = self._envs[0].spec

    def run(self, act: Callable[..., Any], step: int) -> Evaluation:
        """`act` maps observations [E, O] to coordinates [E, D]; `step` is recorded and picks the seeds.

        Where the environments give action masks, it is called with these besides: [E, D, N].
        """
        seeds = [episode_seed(self._seed, EVALUATION, index, step) for index in range(len(self._envs))]
        first, first_masks = zip(*(env.reset(seed) for env, seed in zip(self._envs, seeds, strict=True)), strict=True)
        observations, masks = np.stack(first), list(first_masks)
        returns, lengths = np.zeros(len(self._envs)), np.zeros(len(self._envs), int)
        running = list(range(len(self._envs)))
        while running:
            # Finished episodes stay in the batch, so that it keeps its shape and nothing is compiled again.
            allowed = () if masks[0] is None else (np.stack(masks),)
            actions = spaces.to_environment(self.action_space, np.asarray(act(observations, *allowed)))
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
        if not np.isfinite(returns).all():
            raise InputError(
                f"an evaluation episode at step {step} returned {returns.tolist()}; rewards must be finite"
            )
        return Evaluation(tuple(returns.tolist()), tuple(lengths.tolist()), step)

    def close(self) -> None:
        for env in self._envs:
            env.close()
