"""Action masks: which of its choices a state allows.

Environments give them as Gymnasium does, `info["action_mask"]`, or by a method `action_masks()`, as for sb3-contrib.
Inside they are bools [D, N], True where allowed, with N the most categories of any of the D action dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from implicitq.types import Array, InputError

_IN_INFO, _METHOD = "action_mask", "action_masks"


def method_of(env: gym.Env) -> Callable[[], Any] | None:
    """The way of sb3-contrib, if the environment or one of its wrappers has it."""
    return env.get_wrapper_attr(_METHOD) if env.has_wrapper_attr(_METHOD) else None


def given(info: dict[str, Any], method: Callable[[], Any] | None) -> Any:
    """The mask of a state, as its environment gives it; None if it gives none."""
    mask = info.get(_IN_INFO)
    return method() if mask is None and method is not None else mask


def all_allowed(categories: tuple[int, ...]) -> Array:
    """The mask that forbids nothing that there is: [D, N]."""
    return np.arange(max(categories))[None] < np.array(categories)[:, None]


def read(masks: Any, categories: tuple[int, ...], batch: int) -> Array:
    """Masks of `batch` states -> [B, D, N]; refused if they do not fit the actions, or allow none.

    Each is one row of numbers, all dimensions after one another, or an array for every dimension.
    """
    flat, expected = _flat(masks), sum(categories)
    if flat.size != batch * expected:
        wanted = f"{batch} times {expected}" if batch > 1 else f"{expected}"
        raise InputError(f"expected an action mask of {wanted} numbers, one for each choice, got {flat.size}")
    if not np.isin(flat, (0, 1)).all():
        raise InputError(f"an action mask has 1 where an action is allowed and 0 elsewhere, got {np.unique(flat)[:5]}")
    exists = all_allowed(categories)
    allowed = np.zeros((batch, *exists.shape), bool)
    allowed[:, exists] = flat.reshape(batch, expected)
    if not allowed.any(axis=-1).all():
        where = f" of action dimension {int(np.argwhere(~allowed.any(axis=-1))[0][1])}" if len(categories) > 1 else ""
        raise InputError(f"an action mask must allow at least one action{where}, got one that allows none")
    return allowed


def _flat(masks: Any) -> Array:
    if isinstance(masks, tuple | list):
        return np.concatenate([_flat(part) for part in masks]) if masks else np.zeros(0)
    return np.ravel(masks)
