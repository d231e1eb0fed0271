"""Gymnasium spaces: what is accepted, how observations become vectors and actions leave the agent.

The agent sees flat float32 observations [B, O], or the bytes of images, and acts in coordinates [B, D]: [-1, 1] for
every `Box` dimension, category numbers from zero for discrete ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from implicitq.types import Array, Image, InputError, Spec
from implicitq.validation import brief

_MOST_ACTIONS = 10_000  # dimensions


def spec_of(observation_space: spaces.Space, action_space: spaces.Space) -> Spec:
    """Check both spaces and say what the algorithms need to know of them."""
    image = image_of(observation_space)
    if image is None:
        check_observation_space(observation_space)
    check_action_space(action_space)
    size = flat_size(observation_space)
    if size == 0:
        raise InputError(f"the observation space {observation_space} has no features")
    categories = _categories(action_space)
    dimensions = int(np.prod(action_space.shape or ())) if categories is None else len(categories)
    return Spec(size, dimensions, categories, image, image is not None)


def for_torso(spec: Spec, torso: str) -> Spec:
    """The spec as networks with this torso see it."""
    if torso == "cnn" and spec.image is None:
        raise InputError(
            f"torso 'cnn' is for images, which are observations of type uint8 with three dimensions; these are "
            f"{spec.observation_size} features, for which it must be 'auto' or 'mlp'"
        )
    return dataclasses.replace(spec, image=None) if torso == "mlp" else spec


def image_of(space: spaces.Space) -> Image | None:
    """Bytes in three dimensions are an image; the axis of its channels is the first if that is the shortest."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return None
    first, middle, last = space.shape
    if first < min(middle, last):
        return Image(middle, last, first, channels_first=True)
    return Image(first, middle, last, channels_first=False)


def check_observation_space(space: spaces.Space) -> None:
    match space:
        case spaces.Box():
            if len(space.shape) >= 3 or (space.dtype == np.uint8 and len(space.shape) == 2):
                raise InputError(
                    f"observations of shape {space.shape} and type {space.dtype} look like images; accepted as such "
                    "are whole observations of type uint8 with three dimensions: rows, columns and channels; in "
                    "gymnasium.wrappers.FlattenObservation they are plain numbers"
                )
        case spaces.Dict():
            for part in space.values():
                check_observation_space(part)
        case spaces.Tuple():
            for part in space:
                check_observation_space(part)
        case spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            pass
        case _:
            raise InputError(
                f"observation space {space} is not supported; accepted are Box, Discrete, MultiDiscrete, "
                "MultiBinary, and Dict or Tuple of these"
            )


def check_action_space(space: spaces.Space) -> None:
    dimensions = math.prod(space.shape or ())
    if not 1 <= dimensions <= _MOST_ACTIONS:
        raise InputError(f"the action space has {dimensions or 'no'} dimensions; accepted are 1 to {_MOST_ACTIONS}")
    match space:
        case spaces.Box():
            low, high = space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
            if not np.issubdtype(space.dtype, np.floating):
                raise InputError(f"Box actions must have a floating-point type, got {space.dtype}")
            for j in range(low.size):
                if not (_is_bound(low[j]) and _is_bound(high[j])):
                    raise InputError(
                        f"action dimension {j} is unbounded (from {low[j]} to {high[j]}); Box actions need finite "
                        "bounds: --action-bound 1.0 (action_bound=1.0 in Python) takes those from -1 to 1"
                    )
                if not low[j] < high[j]:
                    raise InputError(
                        f"action dimension {j} has zero width (from {low[j]} to {high[j]}); the lower bound must "
                        "be below the upper one"
                    )
        case spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            pass
        case _:
            raise InputError(
                f"action space {space} is not supported; accepted are bounded Box, Discrete, MultiDiscrete and "
                "MultiBinary"
            )


def _is_bound(ends: Any) -> Any:
    """Not those at the edge of the floating-point range: these stand for infinity in some environments."""
    return np.abs(ends) < 1e30


def with_bounded_actions(env: gym.Env, bound: float | None) -> gym.Env:
    """The environment with actions from -bound to bound wherever its `Box` declares no end."""
    space = env.action_space
    if bound is None or not isinstance(space, spaces.Box):
        return env
    low, high = (np.where(_is_bound(end), end, far) for end, far in ((space.low, -bound), (space.high, bound)))
    if np.array_equal(low, space.low) and np.array_equal(high, space.high):
        return env
    if (low >= high).any():
        j = int(np.argmax((low >= high).ravel()))
        raise InputError(
            f"action_bound {bound:g} leaves nothing of action dimension {j}, which goes from {space.low.ravel()[j]} "
            f"to {space.high.ravel()[j]}"
        )
    bounded = gym.Wrapper(env)
    bounded.action_space = spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)
    return bounded


def flat_size(space: spaces.Space) -> int:
    """Features of one flattened observation."""
    return int(spaces.flatdim(space))


def flatten(space: spaces.Space, batch: Any) -> Array:
    """A batch of observations -> float32 [B, O], or uint8 if they are images; discrete parts become one-hot."""
    match space:
        case spaces.Dict():
            # By name: equal Dict spaces may list their parts in different orders.
            return np.concatenate([flatten(space[name], batch[name]) for name in sorted(space.keys(), key=str)], axis=1)
        case spaces.Tuple():
            return np.concatenate([flatten(part, item) for part, item in zip(space, batch, strict=True)], axis=1)
        case spaces.Discrete():
            return _one_hot(np.asarray(batch).reshape(-1) - space.start, int(space.n))
        case spaces.MultiDiscrete():
            rows = (np.asarray(batch) - space.start).reshape(len(batch), -1)
            sizes = space.nvec.reshape(-1)
            return np.concatenate([_one_hot(rows[:, j], int(n)) for j, n in enumerate(sizes)], axis=1)
        case _:
            rows = np.asarray(batch)
            return _numbers(space, rows.reshape(rows.shape[0], -1 if rows.size else flat_size(space)))


def flatten_one(space: spaces.Space, observation: Any) -> Array:
    """One observation -> [O]."""
    if isinstance(space, spaces.Box):
        return _numbers(space, np.asarray(observation).reshape(-1))
    return flatten(space, _batched(space, observation))[0]


def flatten_any(space: spaces.Space, observation: Any) -> tuple[Array, bool]:
    """One observation or a batch of them -> ([B, O], whether it was a batch)."""
    extra = _extra_dimensions(space, observation)
    if extra not in (0, 1):
        raise InputError(f"expected one observation of {space} or a batch of them, got {_describe(observation)}")
    rows = flatten(space, observation if extra else _batched(space, observation))
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():  # images cannot have any
        raise InputError(f"the observation has {rows[~np.isfinite(rows)][0]} in it, where numbers must be finite")
    return rows, extra == 1


def to_environment(space: spaces.Space) -> Callable[[Array], Array]:
    """A function from agent coordinates [B, D] to a batch of actions of the space."""
    dtype, shape = space.dtype, (-1, *(space.shape or ()))
    match space:
        case spaces.Box():
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            half = (high - low) / 2

            def to_box(coordinates: Array) -> Array:  # at every step, so with few small arrays, and without np.clip
                shares = np.maximum(coordinates, -1, dtype=np.float64)
                shares = np.minimum(shares, 1, out=shares).reshape(shape)
                shares += 1
                shares *= half
                shares += low
                return np.minimum(np.maximum(shares, low, out=shares), high, out=shares).astype(dtype)

            return to_box
        case spaces.Discrete():
            return lambda coordinates: (coordinates[:, 0] + space.start).astype(dtype)
        case spaces.MultiDiscrete():
            return lambda coordinates: (coordinates.reshape(shape) + space.start).astype(dtype)
        case _:
            return lambda coordinates: coordinates.reshape(shape).astype(dtype)


def refuse_others(
    who: str,
    own: tuple[spaces.Space, spaces.Space],
    given: tuple[spaces.Space, spaces.Space],
    whose: str = "the environment",
) -> None:
    """Refuse spaces of observations and actions that are not those that `who` has, or is for."""
    for what, wanted, found in zip(("observations", "actions"), own, given, strict=True):
        if wanted != found:
            raise InputError(f"{who} {what} in {wanted}, {whose} has {found}")


def from_environment(space: spaces.Space, actions: Any, batch: int) -> Array:
    """Inverse of `to_environment` for `batch` actions: [B, D]."""
    given, shape = np.asarray(actions), tuple(space.shape or ())
    shapes = [(batch, *shape), *([shape] if batch == 1 else []), *([] if shape else [(batch, 1)])]
    if given.shape not in shapes:
        raise InputError(f"expected {batch} action(s) of {space}, got shape {given.shape}")
    if given.dtype.kind not in "biuf" or not np.isfinite(given).all():
        raise InputError(f"expected actions of {space}, which are finite numbers, got {brief(given.tolist())}")
    if not isinstance(space, spaces.Box) and (given != np.floor(given)).any():
        raise InputError(f"expected actions of {space}, which are whole numbers, got {brief(given.tolist())}")
    rows = given.reshape(batch, -1)
    match space:
        case spaces.Box():
            low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
            coordinates = 2 * (rows - low) / (high - low) - 1
            return np.clip(coordinates, -1, 1).astype(np.float32)  # beyond the bounds no policy has a density
        case _:
            numbers, sizes = rows - np.reshape(getattr(space, "start", 0), -1), np.array(_categories(space))
            if ((numbers < 0) | (numbers >= sizes)).any():
                raise InputError(f"expected actions of {space}, got {given.tolist()}")
            return numbers.astype(np.int32)


def _categories(space: spaces.Space) -> tuple[int, ...] | None:
    match space:
        case spaces.Discrete():
            return (int(space.n),)
        case spaces.MultiDiscrete():
            return tuple(int(n) for n in space.nvec.reshape(-1))
        case spaces.MultiBinary():
            return (2,) * int(np.prod(space.shape))
    return None


def _numbers(space: spaces.Space, flat: Array) -> Array:
    if image_of(space) is None:
        return flat.astype(np.float32)
    if flat.dtype != np.uint8:
        raise InputError(f"images are of type uint8, got {flat.dtype}")
    return flat


def _one_hot(numbers: Array, size: int) -> Array:
    if ((numbers < 0) | (numbers >= size)).any():
        raise InputError(f"a discrete observation is outside its {size} values: {numbers.tolist()}")
    return (numbers[:, None] == np.arange(size)[None]).astype(np.float32)


def _batched(space: spaces.Space, observation: Any) -> Any:
    """A batch of one."""
    match space:
        case spaces.Dict():
            return {name: _batched(part, observation[name]) for name, part in space.items()}
        case spaces.Tuple():
            return tuple(_batched(part, item) for part, item in zip(space, observation, strict=True))
        case _:
            return np.asarray(observation)[None]


def _extra_dimensions(space: spaces.Space, observation: Any) -> int:
    """Leading dimensions beyond those of the space, judged by its first part; -1 if the shape does not fit."""
    match space:
        case spaces.Dict():
            name = next(iter(space.keys()))
            known = isinstance(observation, dict) and name in observation
            return _extra_dimensions(space[name], observation[name]) if known else -1
        case spaces.Tuple():
            fits = isinstance(observation, tuple | list) and len(observation) == len(space)
            return _extra_dimensions(space[0], observation[0]) if fits else -1
        case _:
            shape, expected = np.shape(observation), tuple(space.shape or ())
            fits = len(shape) >= len(expected) and shape[len(shape) - len(expected) :] == expected
            return len(shape) - len(expected) if fits else -1


def _describe(observation: Any) -> str:
    if isinstance(observation, dict | tuple | list):
        return f"a {type(observation).__name__} of length {len(observation)}"
    return f"shape {np.shape(observation)}"
