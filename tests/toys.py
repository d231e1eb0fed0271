"""Tiny environments for tests. As a module on the path, their ids work in other processes: `toys:Toy-v0`.

Toys are noisy walks, with all that an environment can do right or wrong. A probe is a handful of tiny tasks whose
values are known, one of which every episode begins in. Its observation is one-hot, so any network can hold a table of
values, and one short run answers all questions.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from enum import IntEnum, auto
from pathlib import Path
from typing import Any, ClassVar

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


class Slow(Toy):
    """Takes its time for every step, and does not end by itself."""

    def __init__(self, seconds: float) -> None:
        super().__init__(end_chance=0.0, limit=1_000)
        self.seconds = seconds

    def step(self, action: Any):
        time.sleep(self.seconds)
        return super().step(action)


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


DISCOUNT = 0.7
TIME_LIMIT = 4


class State(IntEnum):
    """Of the probe."""

    CONSTANT = 0  # reward 1, over
    UP = auto()  # reward 2, over: the value depends on the observation
    DOWN = auto()  # reward -2, over
    FIRST = auto()  # reward 0, then SECOND
    SECOND = auto()  # reward 1, over
    LOOP = auto()  # reward 1 for ever; cut by a time limit, which must not count as an end
    CHOICE = auto()  # reward depends on the action, over
    FORK = auto()  # reward 0, then HEADS or TAILS in turn: chance to whoever sees one step, and exactly even
    HEADS = auto()  # reward 1, over
    TAILS = auto()  # reward -1, over


STARTS = (State.CONSTANT, State.UP, State.DOWN, State.FIRST, State.LOOP, State.CHOICE, State.FORK)

VALUES = {
    State.CONSTANT: 1.0,
    State.UP: 2.0,
    State.DOWN: -2.0,
    State.FIRST: DISCOUNT,
    State.SECOND: 1.0,
    State.LOOP: 1 / (1 - DISCOUNT),
    State.FORK: 0.0,
    State.HEADS: 1.0,
    State.TAILS: -1.0,
}
"""Without regularisation. CHOICE is left out: its value depends on the action space."""

BEST = {"Box": 0.25, "Discrete": 1}
"""The best action of CHOICE."""

RESIDUAL_HEADS = 1 / (1 + DISCOUNT**2)
"""Where a residual algorithm puts HEADS, and TAILS at minus that.

FORK is visited as often as HEADS and TAILS together. With V(HEADS) = -V(TAILS) = v and V(FORK) = 0 its loss is
(gamma v)^2 on FORK and (1 - v)^2 on the others, least at v = 1 / (1 + gamma^2): it pays the variance of the next value.
"""


class Probe(gym.Env):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, kind: str = "Box", starts: tuple[State, ...] = STARTS) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1.0, (len(State),), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32) if kind == "Box" else gym.spaces.Discrete(2)
        self._starts = starts
        self._state = State.CONSTANT
        self._length = 0
        self._heads = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._state = State(self.np_random.choice(self._starts))
        self._length = 0
        return one_hot(self._state), {}

    def step(self, action: Any):
        self._length += 1
        state, terminated = self._state, False
        match state:
            case State.FIRST:
                reward, self._state = 0.0, State.SECOND
            case State.FORK:
                reward, self._state = 0.0, State.HEADS if self._heads else State.TAILS
                self._heads = not self._heads
            case State.LOOP:
                reward = VALUES[State.CONSTANT]
            case State.CHOICE:
                reward, terminated = self._reward_of(action), True
            case _:
                reward, terminated = VALUES[state], True
        return one_hot(self._state), reward, terminated, self._length >= TIME_LIMIT and not terminated, {}

    def _reward_of(self, action: Any) -> float:
        if isinstance(self.action_space, gym.spaces.Discrete):
            return float(action == BEST["Discrete"])
        return -4 * (float(action[0]) - BEST["Box"]) ** 2


class Room(IntEnum):
    """States of the masked probe, where the action with the greatest reward is forbidden in all but one of them."""

    OPEN = 0  # all actions, over: the greatest reward is learnt here
    DOOR = auto()  # without the greatest, over
    HALL = auto()  # reward 0, then DOOR: its value depends on what is allowed there
    ROUND = auto()  # for ever, the same as DOOR; cut by a time limit


GREATEST = 2
REWARDS = (0.0, 1.0, 5.0)
ROOM_VALUES = {Room.OPEN: 5.0, Room.DOOR: 1.0, Room.HALL: DISCOUNT, Room.ROUND: 1 / (1 - DISCOUNT)}
"""Without regularisation."""


class MaskedProbe(gym.Env):
    """`several`: a second choice beside the first, which does nothing and in OPEN is forbidden to be 1."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, several: bool = False) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1.0, (len(Room),), np.float32)
        self.action_space = gym.spaces.MultiDiscrete([3, 2]) if several else gym.spaces.Discrete(3)
        self._several = several
        self._room, self._length = Room.OPEN, 0

    def mask(self) -> np.ndarray:
        return room_mask(self._room, self._several)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._room, self._length = Room(self.np_random.choice(list(Room))), 0
        return self._seen(), {"action_mask": self.mask()}

    def step(self, action: Any):
        chosen = np.ravel(action)
        if not self.mask()[chosen[0]] or (self._several and not self.mask()[3 + chosen[1]]):
            raise ValueError(f"{action} is forbidden in {self._room.name}")
        room, reward = self._room, REWARDS[chosen[0]]
        if room is Room.HALL:
            reward, self._room = 0.0, Room.DOOR
        self._length += 1
        terminated = room in (Room.OPEN, Room.DOOR)
        mask = np.zeros_like(self.mask()) if terminated else self.mask()
        return self._seen(), reward, terminated, self._length >= TIME_LIMIT and not terminated, {"action_mask": mask}

    def _seen(self) -> np.ndarray:
        return np.eye(len(Room), dtype=np.float32)[self._room]


def room_mask(room: Room, several: bool = False) -> np.ndarray:
    first = [True, True, room is Room.OPEN]
    return np.array([*first, True, room is not Room.OPEN] if several else first)


class PixelProbe(gym.Env):
    """Where is the bright square? One step, with reward 1 for the right answer: its value is 1 in every state.

    Discrete: in which quarter. Box: how far to the right, with a square of the error taken off.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, kind: str = "Discrete", channels_first: bool = False, size: int = 16) -> None:
        self._size, self._first = size, channels_first
        shape = (1, size, size) if channels_first else (size, size, 1)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32) if kind == "Box" else gym.spaces.Discrete(4)
        self._quarter = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        picture = self.np_random.integers(100, size=(self._size, self._size), dtype=np.uint8)
        below, right = self.np_random.integers(2, size=2)
        half = self._size // 2
        row, column = self.np_random.integers(half - 2, size=2) + half * np.array([below, right])
        picture[row : row + 3, column : column + 3] = 255
        self._quarter = int(2 * below + right)
        return self._seen(picture), {}

    def step(self, action: Any):
        if isinstance(self.action_space, gym.spaces.Discrete):
            reward = float(action == self._quarter)
        else:
            reward = 1 - 4 * (float(action[0]) - (0.5 if self._quarter % 2 else -0.5)) ** 2
        return self._seen(np.zeros((self._size, self._size), np.uint8)), reward, True, False, {}

    def _seen(self, picture: np.ndarray) -> np.ndarray:
        return picture[None] if self._first else picture[..., None]


def one_hot(*states: State) -> np.ndarray:
    """Observation of one state, or of several as a batch."""
    rows = np.eye(len(State), dtype=np.float32)[list(states)]
    return rows[0] if len(states) == 1 else rows


for name, entry in {"Toy": Toy, "DiscreteToy": DiscreteToy, "Unseeded": Unseeded, "MaskedToy": MaskedToy}.items():
    gym.register(f"{name}-v0", entry)
gym.register("Breaks-v0", Breaks, kwargs={"at": 75, "how": "error"})
gym.register("NotFinite-v0", Breaks, kwargs={"at": 75, "how": "reward"})
gym.register("Unmakeable-v0", Fails, kwargs={"how": "raise", "call": "init"})
gym.register("Dies-v0", Fails, kwargs={"how": "kill", "at": 75})
