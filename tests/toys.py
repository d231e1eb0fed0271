"""Tiny environments for tests. As a module on the path, their ids work in other processes: `toys:Toy-v0`."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SMALL = {
    "steps": 120,
    "hidden": (8,),
    "min_replay": 20,
    "batch_size": 8,
    "replay_size": 1_000,
    "bins": 3,
    "eval_every": 40,
    "eval_episodes": 2,
    "checkpoint_every": 40,
    "log_every": 20,
}
"""Hyperparameters of a run that takes about a second."""


class Toy(gym.Env):
    """A noisy walk fixed by reset(seed): ends at random, or by its time limit of 12 steps. Strict about being reset."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space: spaces.Space = spaces.Box(np.array([-1.0, 0.0]), np.array([2.0, 5.0]), dtype=np.float64)

    def __init__(self, end_chance: float = 0.05, limit: int = 12) -> None:
        self.end_chance, self.limit = end_chance, limit
        self.running = False
        self.resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.position = self.np_random.normal(size=3)
        self.time, self.running = 0, True
        self.resets += 1
        return self.position.copy(), {}

    def step(self, action: Any):
        if not self.running:
            raise RuntimeError("stepped after the end of the episode")
        self.time += 1
        push = float(np.sum(action))
        self.position = 0.9 * self.position + 0.1 * push + 0.1 * self.np_random.normal(size=3)
        terminated = bool(self.np_random.random() < self.end_chance)
        truncated = not terminated and self.time >= self.limit
        self.running = not (terminated or truncated)
        return self.position.copy(), push - 1.0, terminated, truncated, {"time": self.time}


class DiscreteToy(Toy):
    action_space = spaces.Discrete(3, start=5)


class MultiDiscreteToy(Toy):
    action_space = spaces.MultiDiscrete([2, 4])


class DictToy(Toy):
    """Observations of several kinds, named against the alphabet."""

    observation_space = spaces.Dict(
        [("z", spaces.Box(-np.inf, np.inf, (3,), np.float64)), ("phase", spaces.Discrete(13))]
    )

    def reset(self, **arguments: Any):
        observation, info = super().reset(**arguments)
        return {"z": observation, "phase": 0}, info

    def step(self, action: Any):
        observation, *rest = super().step(action)
        return {"z": observation, "phase": self.time}, *rest


class ChangesActions(Toy):
    """Overwrites the action it was given, as careless environments do."""

    def step(self, action: Any):
        answer = super().step(action)
        action *= 0
        return answer


class Unseeded(Toy):
    """Does not keep the promise of reset(seed)."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        return super().reset(seed=None)


class Uncopyable(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Breaks(Toy):
    """Fails, or gives what is not finite, at a step counted over all episodes."""

    def __init__(self, at: int, how: str) -> None:
        super().__init__()
        self.at, self.how, self.count = at, how, 0

    def step(self, action: Any):
        observation, reward, terminated, truncated, info = super().step(action)
        self.count += 1
        if self.count == self.at and self.how == "error":
            raise ZeroDivisionError("the floor gave way")
        if self.count == self.at and self.how == "reward":
            reward = float("inf")
        if self.count == self.at and self.how == "observation":
            observation[1] = np.nan
        return observation, reward, terminated, truncated, info


class Fails(Toy):
    """Fails in a way of your choice, in one of its calls; with `once`, only who makes that file."""

    def __init__(self, how: str, call: str = "step", at: int = 1, once: Path | None = None) -> None:
        super().__init__()
        self.how, self.call, self.left, self.once = how, call, at, once
        self.fail_if("init")

    def fail_if(self, call: str) -> bool:
        """Whether the answer is to be of the wrong shape; every other failure happens here, when it is time for it."""
        self.left -= call == self.call
        if call != self.call or self.left != 0:
            return False
        if self.once is not None:
            try:
                self.once.touch(exist_ok=False)
            except FileExistsError:  # another process was first
                return False
        match self.how:
            case "raise":
                raise ZeroDivisionError("the floor gave way")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(3)
            case "hang":
                time.sleep(3_600)
        return self.how == "shape"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        wrong = self.fail_if("reset")
        observation, info = super().reset(seed=seed)
        return (np.zeros(4) if wrong else observation), info

    def step(self, action: Any):
        wrong = self.fail_if("step")
        observation, *rest = super().step(action)
        return (np.zeros(4) if wrong else observation), *rest

    def close(self) -> None:
        self.fail_if("close")


class Clock(Fails):
    """Every observation tells its episode, by the seed, and the time in it; the reward is the time before the step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.number = float((seed or 0) % 9_973)
        return self.told(), {}

    def step(self, action: Any):
        _, _, terminated, truncated, info = super().step(action)
        return self.told(), self.time - 1.0, terminated, truncated, info

    def told(self) -> np.ndarray:
        return np.array([self.number, self.time, 0.0])


def allowed_by(observation: np.ndarray, choices: int = 5) -> np.ndarray:
    """Which actions a masked toy allows, told by what it shows: [..., 3] -> [..., choices]."""
    numbers = np.abs(np.asarray(observation, np.float32)[..., :1] * 1_000).astype(int)
    return (numbers + np.arange(choices)) % 3 != 0


class MaskedToy(Toy):
    """Forbids some actions in every state, in the way of Gymnasium, and all of them when the episode has terminated."""

    action_space = spaces.Discrete(5, start=1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = super().reset(seed=seed)
        return observation, {**info, "action_mask": self.allowed()}

    def step(self, action: Any):
        assert self.allowed()[action - 1], f"{action} is forbidden"
        observation, reward, terminated, truncated, info = super().step(action)
        mask = np.zeros(5, np.int8) if terminated else self.allowed()
        return observation, reward, terminated, truncated, {**info, "action_mask": mask}

    def allowed(self) -> np.ndarray:
        return allowed_by(self.position).astype(np.int8)


class MethodToy(Toy):
    """Two choices of 5 and 2, masked in the way of sb3-contrib: only the first is restricted."""

    action_space = spaces.MultiDiscrete([5, 2])

    def action_masks(self) -> np.ndarray:
        return np.concatenate([allowed_by(self.position), [True, True]])

    def step(self, action: Any):
        assert self.action_masks()[action[0]], f"{action} is forbidden"
        return super().step(action)


for name, entry in {"Toy": Toy, "DiscreteToy": DiscreteToy, "Unseeded": Unseeded, "MaskedToy": MaskedToy}.items():
    gym.register(f"{name}-v0", entry)
gym.register("Breaks-v0", Breaks, kwargs={"at": 75, "how": "error"})
gym.register("NotFinite-v0", Breaks, kwargs={"at": 75, "how": "reward"})
gym.register("Unmakeable-v0", Fails, kwargs={"how": "raise", "call": "init"})
gym.register("Dies-v0", Fails, kwargs={"how": "kill", "at": 75})
