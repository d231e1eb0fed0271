"""A probe environment: a handful of tiny tasks whose values are known, one of which every episode begins in.

The observation is one-hot, so any network can hold a table of values, and one short run answers all questions.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

DISCOUNT = 0.7
TIME_LIMIT = 4


class State(IntEnum):
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


def one_hot(*states: State) -> np.ndarray:
    """Observation of one state, or of several as a batch."""
    rows = np.eye(len(State), dtype=np.float32)[list(states)]
    return rows[0] if len(states) == 1 else rows
