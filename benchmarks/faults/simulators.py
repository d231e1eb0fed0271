"""Environments with a fault each, as ids that other processes can make: `simulators:Raising-v0`."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Walk(gym.Env):
    """A noisy walk of episodes of 12 steps, fixed by reset(seed); from its step `at` on, the fault."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float64)

    def __init__(self, fault: str = "none", at: int = 60) -> None:
        if fault == "constructor":
            raise ZeroDivisionError("the constructor gave way")
        self.fault, self.at, self.count = fault, at, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=None if self.fault == "ignores-seeds" else seed)
        if self.fault == "reset" and self.count >= self.at:
            raise ZeroDivisionError("the reset gave way")
        self.position, self.time = self.np_random.normal(size=3), 0
        return self.position.copy(), {}

    def step(self, action: Any):
        self.count, self.time = self.count + 1, self.time + 1
        self.position = 0.9 * self.position + 0.1 * float(np.sum(action)) + 0.1 * self.np_random.normal(size=3)
        observation, reward, truncated = self.position.copy(), float(self.position[0]), self.time >= 12
        if self.count >= self.at:
            match self.fault:
                case "raises":
                    raise ZeroDivisionError("the floor gave way")
                case "reward":
                    reward = float("nan")
                case "observation":
                    observation[1] = np.nan
                case "shape":
                    observation = np.zeros(5)
                case "dies":
                    os._exit(7)
                case "hangs":
                    time.sleep(10_000)
        return observation, reward, False, truncated and self.fault != "endless", {}

    def close(self) -> None:
        if self.fault == "close":
            raise ZeroDivisionError("the door gave way")


FAULTS = (
    *("constructor", "reset", "raises", "reward", "observation", "shape", "dies", "hangs", "endless", "close"),
    "ignores-seeds",
)


def env_id(fault: str) -> str:
    return f"simulators:{_name(fault)}"


def _name(fault: str) -> str:
    return f"{''.join(word.title() for word in fault.split('-'))}-v0"


for each in ("none", *FAULTS):
    gym.register(_name(each), Walk, kwargs={"fault": each})
