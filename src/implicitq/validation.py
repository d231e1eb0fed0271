"""Checks of what a user or a file gives, and sentences about what is wrong with it."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import reprlib
import tomllib
import types as python_types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from implicitq.types import InputError

_ENV_ID = re.compile(r"(?:(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):)?[^:\s]+")
_LARGEST = 1 << 20  # bytes of a file of settings
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxtuple = 2, 10, 10
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


# What people type who know other libraries -> what it is called here.
ALIASES: dict[str, tuple[str, ...]] = {
    "batch": ("batch_size",),
    "buffer_size": ("replay_size",),
    "ent_coef": ("temperature",),
    "env_id": ("env",),
    "eval_freq": ("eval_every",),
    "exploration_final_eps": ("epsilon",),
    "gamma": ("discount",),
    "gradient_steps": ("updates_per_step",),
    "hidden_sizes": ("hidden",),
    "learning_starts": ("min_replay",),
    "log_interval": ("log_every",),
    "lr": ("learning_rate",),
    "memory_size": ("replay_size",),
    "n_envs": ("num_envs",),
    "n_eval_episodes": ("eval_episodes",),
    "n_steps": ("n_step", "steps"),
    "net_arch": ("hidden",),
    "policy_kwargs": ("hidden",),
    "polyak": ("target_update",),
    "save_freq": ("checkpoint_every",),
    "target_entropy": ("entropy_target",),
    "tau": ("target_update", "temperature"),  # Stable-Baselines3's, and the paper's
    "timesteps": ("steps",),
    "total_timesteps": ("steps",),
    "train_freq": ("updates_per_step",),
}


def nearest(name: str, known: Any, prefix: str = "") -> str:
    """The end of a sentence about an unknown name: a guess if there is a near one, and what is known.

    `prefix` stands before the guess, where names are typed with one.
    """
    guess = [alias for alias in ALIASES.get(name, ()) if alias in known]
    guess = guess or difflib.get_close_matches(name[:100], list(known), 1)
    guess = guess or [each for each in known if each.lower() == name.lower()]
    hint = f"; did you mean {' or '.join(repr(prefix + each) for each in guess)}?" if guess else ";"
    return f"{hint} known: {', '.join(sorted(known))}"


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """The value as an int: NumPy's whole numbers count, and so does 1e6. InputError for all others."""
    number: Any = value.item() if isinstance(value, np.generic) else value
    number = int(number) if isinstance(number, float) and number.is_integer() else number
    within = isinstance(number, int) and least <= number and (most is None or number <= most)
    if within and not isinstance(number, bool):
        return number
    accepted = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise InputError(f"{name} must be a whole number {accepted}, got {brief(value)}")


def brief(value: Any) -> str:
    """The value as text for a sentence; long, large or deep values are shortened."""
    return _SHORT.repr(value)


def printable(text: str, kept: str = "") -> str:
    """The text with a ? for every character that is not seen but may steer a terminal; those in `kept` stay."""
    return "".join(letter if letter.isprintable() or letter in kept else "?" for letter in text)


def sentence(error: Exception) -> str:
    """What to tell the user of an error; for errors of the disk, the file and the reason."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def read_settings(path: Path) -> Any:
    """What a .toml or .json file holds that the user has named, and which is small; a link will do."""
    form, parse = ("JSON", json.loads) if path.suffix == ".json" else ("TOML", tomllib.loads)
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            raise OSError("it is not a plain file")
        with open(path, "rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise OSError(f"it is larger than {_LARGEST >> 20} MB, the most that is read")
        return parse(content.decode())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a {form} file: {error}") from None


def check_types(config: Any) -> None:
    """Refuse a field of the wrong type; whole floats such as 1e6 count as integers, NumPy's numbers as Python's."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, expected = _plain(getattr(config, field.name)), hints[field.name]
        if expected is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if expected == tuple[int, ...] and isinstance(value, list):
            value = tuple(value)
        object.__setattr__(config, field.name, value)
        require(config, field.name, _fits(value, expected), _name_of(expected))


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _fits(value: Any, expected: Any) -> bool:
    origin = typing.get_origin(expected)
    if origin is Literal:
        return value in typing.get_args(expected)
    if origin in (typing.Union, python_types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(expected))
    if expected == tuple[int, ...]:
        return isinstance(value, tuple) and all(_fits(item, int) for item in value)
    if expected is float:
        if isinstance(value, int) and not isinstance(value, bool):
            return abs(value) < 2**1023  # the others are no floats
        return isinstance(value, float) and not math.isnan(value)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, expected)


def _name_of(expected: Any) -> str:
    if typing.get_origin(expected) is Literal:
        return " or ".join(repr(option) for option in typing.get_args(expected))
    if typing.get_origin(expected) in (typing.Union, python_types.UnionType):
        return " or ".join(_name_of(option) for option in typing.get_args(expected))
    names = {
        int: "a whole number",
        float: "a number",
        bool: "True or False",
        str: "a text",
        type(None): "None",
        tuple[int, ...]: "whole numbers",
    }
    return names.get(expected, str(expected))


def require(config: Any, name: str, condition: bool, accepted: str) -> None:
    if not condition:
        raise InputError(f"{name} must be {accepted}, got {brief(getattr(config, name))}")


# Ids of environments. Of one such as `module:Id`, Gymnasium imports the module, which runs its code. A user may ask for
# that, a file not.


def check_env_id(name: str) -> None:
    """Refuse what Gymnasium cannot take apart."""
    if _ENV_ID.fullmatch(name) is None:
        raise InputError(f"an environment is named as Id-v0 or as module:Id-v0, got {brief(name)}")


def module_of(name: str) -> str | None:
    """The module that Gymnasium imports for an id."""
    return name.split(":")[0] if ":" in name else None


def refuse_modules(names: Iterable[str], file: str, remedy: str) -> None:
    """Refuse ids that `file` names if making their environments would import a module; `remedy` allows it."""
    for name in names:
        module = module_of(name)
        if module is not None:
            raise InputError(
                f"{file} names the environment {brief(name)}, which would run the module {brief(module)}; {remedy}"
            )
