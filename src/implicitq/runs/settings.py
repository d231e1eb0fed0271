"""The settings of a run, whether implicitq made it or another library: read, and compared. Needs no JAX."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from implicitq import configs
from implicitq.configs import Config
from implicitq.runs.files import LARGEST_STEP, check_name
from implicitq.types import InputError

_FAILURES = {"on_env_error", "env_timeout"}  # what to do when an environment fails
NOT_LEARNT = frozenset({"steps", "preset", "checkpoint_every", "log_every", *_FAILURES})
"""Settings that do not change what is learnt."""
MAY_CHANGE = NOT_LEARNT | {"vectorization"}
"""Settings that may change on resume without changing the result."""
SCALE = frozenset(
    {"steps", "eval_every", "eval_episodes", "checkpoint_every", "log_every", "vectorization", *_FAILURES}
)
"""Settings of the length of a run and how it is watched; names of lines leave them out."""


@dataclass(frozen=True)
class ForeignConfig:
    """What is known of a run that another library made, such as `sbx-sac`."""

    algorithm: str
    env: str
    steps: int
    seed: int
    eval_every: int
    values: Mapping[str, Any]  # all that its config.json says


RunConfig = Config | ForeignConfig


def from_file(data: Any, where: Any, eval_every: int) -> RunConfig:
    """The config of a run folder's file; `eval_every` is for runs of other libraries that do not say."""
    if not isinstance(data, dict) or "layout" in data or data.get("algorithm") in (None, *configs.KNOWN):
        config = configs.from_file(data, where)
        check_name(config.env, f"{where}: env")
        _check_steps({"steps": config.steps, "eval_every": config.eval_every}, where)
        return config
    known = {"eval_every": eval_every, **data}
    for name in ("algorithm", "env"):
        check_name(known.get(name), f"{where}: {name}")
    _check_steps({name: known.get(name) for name in ("steps", "seed", "eval_every")}, where)
    told = (known[name] for name in ("algorithm", "env", "steps", "seed", "eval_every"))
    return ForeignConfig(*told, values=data)


def _check_steps(values: Mapping[str, Any], where: Any) -> None:
    for name, value in values.items():
        least = 0 if name == "seed" else 1
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST_STEP:
            raise InputError(f"{where} has no {name} that can be used, got {reprlib.repr(value)}")


def to_file(config: RunConfig) -> dict[str, Any]:
    """Plain data that `from_file` reads back."""
    return dict(config.values) if isinstance(config, ForeignConfig) else configs.to_file(config)


def identity(config: RunConfig, apart: Collection[str] = ()) -> str:
    """The same text for runs that learn the same thing; settings in `apart` are ignored too."""
    values = {name: value for name, value in _learnt(config).items() if name not in apart}
    return json.dumps(values, sort_keys=True)


def line_identity(config: RunConfig) -> str:
    """The same text for runs that differ in nothing but their seeds and how they are watched: those of one line."""
    return identity(config, {"seed", *SCALE})


def _learnt(config: RunConfig) -> dict[str, Any]:
    """Settings that change what is learnt, as plain data; temperature_learning_rate None is given as learning_rate."""
    values = {name: value for name, value in to_file(config).items() if name not in ("layout", *NOT_LEARNT)}
    if "temperature_learning_rate" in values and values["temperature_learning_rate"] is None:
        values["temperature_learning_rate"] = values.get("learning_rate")
    return values


def lasting(config: Config) -> dict[str, Any]:
    """The settings that a run keeps from its first step to its last, as plain data."""
    return {name: value for name, value in configs.to_json(config).items() if name not in MAY_CHANGE}


def changed_since(saved: Mapping[str, Any], config: Config) -> str:
    """In which settings a config differs from `saved`, the `lasting` settings of a checkpoint; in words."""
    others = {name: value for name, value in configs.to_json(config).items() if name in MAY_CHANGE}
    return differences(configs.from_json({**others, **saved}), config, "now")


def differences(there: RunConfig, here: RunConfig, word: str = "planned") -> str:
    """Differing settings that change what is learnt, such as `batch_size 256 there, 8 planned`; empty if none do."""
    theirs, ours = _learnt(there), _learnt(here)
    apart = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    return ", ".join(f"{name} {theirs.get(name)} there, {ours.get(name)} {word}" for name in apart)
