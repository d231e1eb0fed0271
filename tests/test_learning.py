"""Whole trainings on small tasks: the agent must end far better than it began."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

import implicitq


class Dials(gym.Env):
    """Three dials of 3, 5 and 2 positions, each to be turned to the position that the observation shows for it.

    Every step pays the share of dials that are right, so ten steps return 10 at best and about 3.4 at random.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.MultiDiscrete([3, 5, 2])
    steps = 10

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._taken = 0
        return self._turn(), {}

    def step(self, action: Any):
        reward = float(np.mean(np.asarray(action) == self._wanted))
        self._taken += 1
        return self._turn(), reward, False, self._taken == self.steps, {}

    def _turn(self):
        self._wanted = self.np_random.integers(self.action_space.nvec)
        return (2 * self._wanted / (self.action_space.nvec - 1) - 1).astype(np.float32)


def test_m_iq_swings_the_pendulum_up():
    agent = implicitq.make("miq", "Pendulum-v1", seed=0, eval_every=100_000)  # the preset: what the README promises
    before = agent.evaluate(10).mean
    agent.learn()
    after = agent.evaluate(10).mean
    assert before < -900
    assert after > -300  # balanced from most starts; a policy that hangs still gets about -1,400


@pytest.mark.parametrize("algorithm", ["iq", "miq"])
def test_cartpole_is_balanced(algorithm):
    agent = implicitq.make(algorithm, "CartPole-v1", seed=0, hidden=(64, 64), learning_rate=1e-3, eval_every=100_000)
    assert agent.evaluate(10).mean < 100
    agent.learn(10_000)
    assert agent.evaluate(10).mean > 300


@pytest.mark.parametrize("num_envs", [1, 4])
def test_a_multidiscrete_task_is_learnt(num_envs):
    agent = implicitq.make(
        "iq", Dials, seed=0, hidden=(64,), learning_rate=3e-3, min_replay=200, num_envs=num_envs, eval_every=100_000
    )
    assert agent.evaluate(10).mean < 5
    agent.learn(3_000)
    assert agent.evaluate(10).mean > 9
