"""Configs as plain data, in run folders and policy files."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from typing import Any

from implicitq.configs.fields import Config
from implicitq.configs.preset_files import FILE, RESERVED, is_path
from implicitq.configs.presets import KNOWN, resolve
from implicitq.types import InputError
from implicitq.validation import brief

LAYOUT = 1  # of run folders
_LONGEST = 1_000  # texts and lists in a config


def to_json(config: Config) -> dict[str, Any]:
    """Plain data that `from_json` reads back to an equal config."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_json(data: Any) -> Config:
    """Inverse of `to_json`, with every check; any other data are refused."""
    if not isinstance(data, Mapping):
        raise InputError(f"a config is a table of hyperparameters, got {type(data).__name__}")
    for name, value in data.items():
        if not isinstance(name, str) or not _is_setting(value):
            raise InputError(f"{brief(name)} must be a number, a text or a list of numbers, got {brief(value)}")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    algorithm, env = values.pop("algorithm", None), values.pop("env", None)
    if not isinstance(algorithm, str) or not isinstance(env, str):
        raise InputError("a config needs the names of its algorithm and its env")
    if is_path(values.get("preset")):  # a file must not choose which file is read
        raise InputError(f"preset must be 'paper', 'none' or 'file', got {brief(values['preset'])}")
    values = {**_defaults(algorithm), **_older(values)}
    if values.get("preset") != FILE:
        return resolve(algorithm, env, **values)
    return dataclasses.replace(resolve(algorithm, env, **{**values, "preset": "none"}), preset=FILE)


def refuse_outdated(data: Mapping[str, Any]) -> None:
    """Refuse to act or train with a policy that this version does not have; such runs can still be reported."""
    if data.get("policy") == "gaussian" and "members" not in data:
        raise InputError("the policy is a gaussian without truncation, which this version does not have; train it anew")


def to_file(config: Config) -> dict[str, Any]:
    """What config.json of a run folder holds."""
    return {"layout": LAYOUT, **to_json(config)}


def from_file(data: Any, where: Any) -> Config:
    """Inverse of `to_file`; `where` is named if the layout is not known."""
    layout = data.pop("layout", None) if isinstance(data, dict) else None
    if not isinstance(layout, int) or not 1 <= layout <= LAYOUT:
        raise InputError(f"{where} has run-folder layout {brief(layout)}; known here: up to {LAYOUT}")
    return from_json(data)


def to_flags(values: Mapping[str, Any]) -> list[str]:
    """Hyperparameters as words of the command line."""
    words: list[str] = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, tuple | list) else (value,))]
    return words


def train_command(config: Config) -> str:
    """The command line that trains with this config: what is not a default, as flags."""
    preset = config.preset if config.preset in ("paper", "none") else "none"
    base = resolve(config.algorithm, config.env, preset)
    names = [field.name for field in dataclasses.fields(config) if field.name not in ("algorithm", "env", "preset")]
    told = ("seed", "steps")  # in any case
    values = {
        name: getattr(config, name) for name in names if name in told or getattr(config, name) != getattr(base, name)
    }
    extra = [] if preset == "paper" else ["--preset", preset]
    words = ["implicitq", "train", config.algorithm, "--env", config.env, *extra, *to_flags(values)]
    return shlex.join(words)


def to_preset(config: Config, about: Mapping[str, Any]) -> dict[str, Any]:
    """What a preset file with these settings holds; `about` says where they come from."""
    base, values = to_json(resolve(config.algorithm, config.env, "none")), to_json(config)
    settings = {name: value for name, value in values.items() if name not in RESERVED and value != base[name]}
    return {"algorithm": config.algorithm, "about": dict(about), "settings": settings}


def _defaults(algorithm: str) -> dict[str, Any]:
    """Values for fields that a file lacks: the defaults of the class, whatever algorithm and preset say."""
    if algorithm not in KNOWN:
        return {}
    fields = dataclasses.fields(KNOWN[algorithm].config)
    meant = {field.name: field.default for field in fields if field.name not in ("algorithm", "env")}
    return meant | {name: None for name in ("temperature_learning_rate",) if name in meant}


def _is_setting(value: Any, inside: bool = False) -> bool:
    """Whether it may be the value of a hyperparameter, judged without looking deep into it."""
    if isinstance(value, list | tuple) and not inside:
        return len(value) <= _LONGEST and all(_is_setting(item, inside=True) for item in value)
    return value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _LONGEST)


def _older(values: dict[str, Any]) -> dict[str, Any]:
    """The settings of a file, under current names and rules."""
    if "target_entropy" in values:
        total = values.pop("target_entropy")
        if total is not None:
            raise InputError(
                f"the config has target_entropy {total}, in total; set entropy_target to its share per action dimension"
            )
    if values.get("temperature") == "auto" and (values.get("kl") is not None or values.get("entropy") is not None):
        values["alpha"] = None  # such files have it beside them, without effect
    return values
