"""Shared vocabulary. Imports nothing of ours.

Shapes everywhere: B batch, O observation features, D action dimensions, N categories (bins) per dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

ActionKind = Literal["Box", "Discrete", "MultiDiscrete"]
"""Continuous actions, one choice, or several choices at once (`MultiBinary` among them)."""

Array = np.ndarray
"""An array on the host."""

PyTree = Any
"""Nested containers of arrays."""

A = TypeVar("A")


class LaterSteps(NamedTuple, Generic[A]):
    """Steps 1 to n - 1 of an n-step return; step 0 is the transition's own."""

    observation: A  # [B, n - 1, O]
    action: A  # [B, n - 1, D]
    weight: A  # [B, n - 1], gamma^i for step i; zero beyond the end of the episode
    mask: A | None = None  # [B, n - 1, D, N], as in `Transition`


class Visited(NamedTuple, Generic[A]):
    """States of the latest steps, evenly spaced; they have no actions here, and no part in returns."""

    observation: A  # [K, O]
    mask: A | None = None  # [K, D, N], as in `Transition`


class Transition(NamedTuple, Generic[A]):
    """A batch of what the replay hands to an update, on the host or inside a compiled function.

    With n-step returns, `reward` is the discounted sum of the rewards up to `next_observation`.
    `discount` is gamma to the power of the steps in between, and zero after a termination: a time limit leaves
    it as it is, so the target `reward + discount * V(next_observation)` is right in every case.
    `later_weight` is the sum of gamma^i over steps 1 to n - 1 of the return, and `later_steps` has their observations
    and actions, for algorithms that need whole paths.
    `mask` and `next_mask` say which actions the two states allow, where the environment gives action masks.
    `visited` are states that the policy came to lately, for algorithms that look at what it does there.
    """

    observation: A  # [B, O]
    action: A  # [B, D], as the policy stores it
    reward: A  # [B]
    discount: A  # [B]
    next_observation: A  # [B, O]
    later_weight: A | None = None  # [B]; None for one-step returns
    later_steps: LaterSteps[A] | None = None  # only where the algorithm asks for them
    mask: A | None = None  # [B, D, N]; None: all actions are allowed
    next_mask: A | None = None  # [B, D, N]; of a state that ends the episode it means nothing
    visited: Visited[A] | None = None  # only where the algorithm asks for them

    def map_observations(self, function: Callable[[A], A]) -> Transition[A]:
        """The same batch with `function` applied to all its observations."""
        steps, visited = self.later_steps, self.visited
        return self._replace(
            observation=function(self.observation),
            next_observation=function(self.next_observation),
            later_steps=None if steps is None else steps._replace(observation=function(steps.observation)),
            visited=None if visited is None else visited._replace(observation=function(visited.observation)),
        )


class Image(NamedTuple):
    """How the pixels lie in an observation, which is flat."""

    height: int
    width: int
    channels: int
    channels_first: bool


@dataclass(frozen=True)
class Spec:
    """What an algorithm has to know of its task."""

    observation_size: int  # O
    action_dimensions: int  # D
    categories: tuple[int, ...] | None  # sizes of discrete action dimensions; None: continuous, each in [-1, 1]
    image: Image | None = None  # what convolutions look at; None: networks without convolutions
    pixels: bool = False  # observations are bytes from 0 to 255, which the networks see divided by 255

    @property
    def observation_dtype(self) -> np.dtype:
        """Type of observations up to the networks, which see float32."""
        return np.dtype(np.uint8 if self.pixels else np.float32)

    @property
    def continuous(self) -> bool:
        return self.categories is None

    @property
    def mask_shape(self) -> tuple[int, int] | None:
        """D and N of action masks; None for continuous actions, which have none."""
        return None if self.categories is None else (len(self.categories), max(self.categories))

    @property
    def action_kind(self) -> ActionKind:
        if self.categories is None:
            return "Box"
        return "Discrete" if len(self.categories) == 1 else "MultiDiscrete"


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns of whole episodes."""

    returns: tuple[float, ...]  # one for each episode
    lengths: tuple[int, ...]  # steps of each episode
    step: int  # environment steps of training when it was made

    @property
    def mean(self) -> float:
        """Mean return over the episodes."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns over the episodes."""
        return float(np.std(self.returns))


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what came and what is accepted."""


class OtherConditions(InputError):
    """A run cannot go on exactly: versions or processor, say, are not those that it began with."""
