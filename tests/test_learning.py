"""Whole trainings on small tasks: the agent must end far better than it began.

`benchmarks/learning-tests/margins.py` measures how much better, over seeds, instruction sets and threads.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

import implicitq
from implicitq.configs import ALGORITHMS, ImplicitConfig, resolve


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


class Parking(gym.Env):
    """A sledge on ice, to be pushed to the middle of a line of length 4 and held there for 30 steps.

    It starts at rest, up to 1 away, and every step pays 1 minus its distance. To stop in the middle it must be braked
    half-way: a wrong habit goes on paying for many steps. Pushes are a number in [-1, 1], or one of -1, 0 and 1; the
    best return is 29.2 on average, or 28.5 (by dynamic programming), and random pushes return about -2.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
    steps = 30

    def __init__(self, kind: str) -> None:
        discrete = gym.spaces.Discrete(3, start=-1)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32) if kind == "Box" else discrete

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._position, self._speed, self._taken = self.np_random.uniform(-1, 1), 0.0, 0
        return self._seen(), {}

    def step(self, action: Any):
        self._speed = np.clip(self._speed + 0.1 * np.ravel(action)[0], -1, 1)
        moved = self._position + self._speed
        self._position = np.clip(moved, -2, 2)
        if moved != self._position:  # the ends are walls
            self._speed = 0.0
        self._taken += 1
        return self._seen(), 1 - abs(self._position), False, self._taken == self.steps, {}

    def _seen(self):
        return np.array([self._position, self._speed], np.float32)


PARKING = {
    "hidden": (64,),
    "learning_rate": 3e-3,
    "batch_size": 64,
    "discount": 0.95,
    "min_replay": 1_000,
    "warmup": "uniform",
    "eval_every": 100_000,
}


PARKED = 18.0
SWING = {"hidden": (64, 64), "learning_rate": 3e-3, "batch_size": 64, "target_update": 0.02, "discount": 0.97}
SWING |= {"eval_every": 100_000}
SWING_STEPS, SWUNG_UP = 7_000, -500.0
DIALS = {"hidden": (64,), "learning_rate": 3e-3, "min_replay": 200, "discount": 0.5, "temperature": 0.1}
DIALS |= {"target_update": 0.05, "eval_every": 100_000}
DIALS_STEPS, TURNED = 2_000, 9.0


def parking_cases() -> list[tuple[str, str]]:
    """Every algorithm, in turn on Box and Discrete actions where it is for both."""
    kinds = {
        name: [k for k in ("Box", "Discrete") if k in resolve(name, "none").accepted_actions] for name in ALGORITHMS
    }
    return [(name, each[number % len(each)]) for number, (name, each) in enumerate(kinds.items())]


def parking_settings(algorithm: str) -> dict[str, Any]:
    """One entropy weight for all that have a fixed one; targets and a mean of weights that suit so short a run."""
    config = resolve(algorithm, "none")
    settings = dict(PARKING)
    if algorithm != "sac":
        settings["target_update"] = 0.05
    if isinstance(config, ImplicitConfig) and config.temperature != "auto":
        settings["temperature"] = 0.05 / (1 - config.alpha)
    if config.actor_average is not None:
        settings["actor_average"] = 0.005
    return settings


def parking_steps(algorithm: str) -> int:
    """More for averaged weights, which lag."""
    return 3_000 if resolve(algorithm, "none").actor_average is None else 5_000


@pytest.mark.parametrize(("algorithm", "kind"), parking_cases())
def test_every_algorithm_parks_the_sledge(algorithm, kind):
    agent = implicitq.make(algorithm, partial(Parking, kind), seed=0, **parking_settings(algorithm))
    assert agent.evaluate(10).mean < 12
    agent.learn(parking_steps(algorithm))
    assert agent.evaluate(10).mean > PARKED
    agent.close()


def test_sac_swings_the_pendulum_up():
    agent = implicitq.make("sac", "Pendulum-v1", seed=0, **SWING)
    assert agent.evaluate(10).mean < -900
    agent.learn(SWING_STEPS)
    assert agent.evaluate(10).mean > SWUNG_UP
    agent.close()


def test_a_multidiscrete_task_is_learnt_in_several_environments_at_once():
    agent = implicitq.make("iq", Dials, seed=0, num_envs=4, **DIALS)
    assert agent.evaluate(10).mean < 5
    agent.learn(DIALS_STEPS)
    assert agent.evaluate(10).mean > TURNED
    agent.close()
