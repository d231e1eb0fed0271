"""Running statistics of wrappers, such as Gymnasium's NormalizeObservation and NormalizeReward.

They outlive an episode, so reset(seed) does not bring them back: training keeps them as they were before it, and they
go with the policy, which means nothing without them. Where a policy is shown it gets those of training, frozen.

Running statistics are any object with the plain attributes `mean`, `var` and `count`, held by a wrapper or by the
environment itself, each a "level". Names are as in `NormalizeObservation.obs_rms.mean`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from implicitq.types import Array, InputError
from implicitq.validation import brief

State = dict[str, Any]
"""All arrays and numbers of the levels that hold statistics: the sums beside these outlive an episode too."""

Shared = dict[str, Array]
"""Mean, variance and count alone: what a policy needs."""

_KEY = re.compile(r"\w+( \d+)?\.\w+")
_PARTS = ("mean", "var", "count")
_OF_REWARDS = ("return_rms", "ret_rms", "reward_rms")  # attributes of these names scale rewards, others observations
# What a value was, so that it comes back as the same: NumPy rounds a float32 array and a number in another way than the
# array and a float64.
_KINDS = {"array": np.array, "scalar": lambda array: array[()], "number": lambda array: array.item()}


class Statistics:
    """The running statistics of one environment."""

    def __init__(self, env: gym.Env) -> None:
        self._levels = dict(_levels(env))
        self._made = self.read()

    def read(self) -> State:
        """The current statistics; empty if there are none."""
        state = {}
        for name, level in self._levels.items():
            for attribute, value in _attributes(level):
                if _is_running(value):
                    state |= {f"{name}.{attribute}.{part}": copy.copy(getattr(value, part)) for part in _PARTS}
                elif _is_plain(value):
                    state[f"{name}.{attribute}"] = copy.copy(value)
        return state

    def load(self, state: State) -> None:
        """Inverse of `read`. Only what is a number or an array here, or is still None, becomes another."""
        for name, level in self._levels.items():
            for attribute, value in _attributes(level):
                key = f"{name}.{attribute}"
                if _is_running(value):
                    for part in _PARTS:
                        setattr(value, part, copy.copy(state.get(f"{key}.{part}", getattr(value, part))))
                elif key in state and (value is None or _is_plain(value)):
                    setattr(level, attribute, copy.copy(state[key]))

    def adopt(self, shared: Shared) -> None:
        """Take those of training for observations, let rewards through as they are, and freeze both."""
        for _, level, attribute, running in self._running():
            setattr(level, attribute, copy.copy(running))  # it may belong to a training environment too
        self.load(self._made)
        for key, level, attribute, running in self._running():
            if attribute in _OF_REWARDS:
                running.mean, running.var = np.zeros_like(running.mean), np.ones_like(running.var)
                if "epsilon" in vars(level):
                    level.epsilon = 0.0  # or rewards would be divided by almost 1
            elif f"{key}.mean" in shared:
                self.load(fitted(self.read(), {name: shared[name] for name in _names(key)}))
            else:
                continue
            if hasattr(level, "update_running_mean"):
                level.update_running_mean = False

    def misfits(self, shared: Shared) -> list[str]:
        """Sentences about statistics for observations that are not on both sides, or cannot be frozen."""
        sentences = []
        for key, level, attribute, _ in self._running():
            frozen = getattr(level, "update_running_mean", None)
            if attribute not in _OF_REWARDS and f"{key}.mean" not in shared and frozen is not False:
                sentences.append(f"there are no statistics of training for {key}: it begins anew in every evaluation")
            elif frozen is None:
                sentences.append(
                    f"{key} cannot be frozen, so it goes on from the statistics of training in every evaluation: "
                    "its class has no update_running_mean"
                )
        return sentences + absent(self.read(), shared)

    def _running(self) -> Iterator[tuple[str, Any, str, Any]]:
        """Name, level, attribute and object of each of them."""
        for name, level in self._levels.items():
            for attribute, value in _attributes(level):
                if _is_running(value):
                    yield f"{name}.{attribute}", level, attribute, value


def absent(state: State, shared: Shared) -> list[str]:
    """Sentences about observation statistics of training that an environment with this state does not have."""
    return [
        f"the policy was trained on observations that {key} had scaled, but the environment has none: wrap it as in "
        "training"
        for key in keys(shared)
        if key.split(".")[1] not in _OF_REWARDS and f"{key}.mean" not in state
    ]


def fitted(state: State, shared: Shared, share: float = 1.0) -> State:
    """The state with the statistics of training put in; their counts are multiplied by `share`."""
    found = dict(state)
    for key in keys(shared):
        if f"{key}.mean" not in state:
            continue
        for name in _names(key):
            value, before = np.array(shared[name]), state[name]
            if value.shape != np.shape(before):
                raise InputError(
                    f"{name} of training has shape {value.shape}, that of the environment {np.shape(before)}"
                )
            value = value * share if name.endswith("count") else value
            found[name] = _KINDS["number"](value) if _kind(before) == "number" else value
    return found


def merged(states: Sequence[State]) -> Shared:
    """The statistics of everything that all environments have seen: means weighted by their counts, and variances
    with the differences between these means. Those of one environment as they are."""
    shared = {}
    for key in keys(states[0]):
        means, variances, counts = (_floats([state[name] for state in states]) for name in _names(key))
        total = counts.sum()
        weights = counts / total if total else np.full(len(states), 1 / len(states))
        mean, var = means[0], variances[0]
        if len(states) > 1:
            exact = np.tensordot(weights, means.astype(np.float64), 1)
            within = variances + np.square(means - exact)
            mean, var = exact.astype(means.dtype), np.tensordot(weights, within, 1).astype(variances.dtype)
        shared |= dict(zip(_names(key), (mean, var, np.asarray(total, np.float64)), strict=True))
    return shared


def packed(state: State) -> dict[str, Array]:
    """A state as arrays alone, for a file."""
    return {f"{_kind(value)}.{name}": np.array(value) for name, value in state.items()}


def unpacked(arrays: Mapping[str, Array]) -> State:
    """Inverse of `packed`."""
    state = {}
    for name, array in arrays.items():
        kind, _, key = name.partition(".")
        if kind not in _KINDS or (kind != "array" and array.ndim):
            raise InputError(f"the checkpoint has statistics {brief(name)} that nothing can be made of")
        state[key] = _KINDS[kind](array)
    return state


def checked(shared: Shared) -> Shared:
    """The statistics, if they are complete and plausible; else refused: a file may come from a stranger."""
    for name in shared:
        key, _, part = name.rpartition(".")
        alike = [shared.get(each) for each in _names(key)]
        if part not in _PARTS or not _KEY.fullmatch(key) or any(array is None for array in alike):
            raise InputError(f"its statistics {brief(name)} are not whole")
        mean, var, count = (np.asarray(array) for array in alike)
        if mean.shape != var.shape or count.shape != () or any(array.dtype.kind != "f" for array in (mean, var, count)):
            raise InputError(f"its statistics {key} do not fit together")
        if not all(np.isfinite(array).all() for array in (mean, var, count)):
            raise InputError(f"its statistics {key} are not finite")
        if (var < 0).any() or count < 0:
            raise InputError(f"its statistics {key} have a variance or a count below 0")
    return shared


def keys(names: Iterable[str]) -> list[str]:
    """Names of the statistics, such as `NormalizeObservation.obs_rms`."""
    return sorted(name.removesuffix(".mean") for name in names if name.endswith(".mean") and name.count(".") == 2)


def _names(key: str) -> tuple[str, str, str]:
    mean, var, count = (f"{key}.{part}" for part in _PARTS)
    return mean, var, count


def _floats(values: Sequence[Any]) -> Array:
    stacked = np.stack([np.asarray(value) for value in values])
    return stacked if stacked.dtype.kind == "f" else stacked.astype(np.float64)


def _levels(env: gym.Env) -> Iterator[tuple[str, gym.Env]]:
    """The environment and its wrappers, from outside, as far as they hold statistics."""
    seen: dict[str, int] = {}
    while True:
        if any(_is_running(value) for _, value in _attributes(env)):
            kind = re.sub(r"\W", "_", type(env).__name__)  # it may be made by a program
            seen[kind] = seen.get(kind, 0) + 1
            yield kind if seen[kind] == 1 else f"{kind} {seen[kind]}", env
        if not isinstance(env, gym.Wrapper):
            return
        env = env.env


def _attributes(level: gym.Env) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(level).items() if name.isidentifier()]


def _is_running(value: Any) -> bool:
    inside = getattr(value, "__dict__", {})
    return all(part in inside and _is_plain(inside[part]) for part in _PARTS) and np.ndim(inside["count"]) == 0


def _is_plain(value: Any) -> bool:
    """Whether it is an array or a number that a file can hold."""
    if not isinstance(value, bool | int | float | np.ndarray | np.generic):
        return False
    dtype = np.asarray(value).dtype
    return dtype.kind in "biuf" and dtype.itemsize <= 8


def _kind(value: Any) -> str:
    return "array" if isinstance(value, np.ndarray) else "scalar" if isinstance(value, np.generic) else "number"
