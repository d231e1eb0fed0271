"""What a search may try: a range or a list of choices for each of some hyperparameters. Needs no Optuna, no JAX."""

from __future__ import annotations

import json
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from implicitq import configs
from implicitq.configs import Config, SACConfig
from implicitq.runs.settings import SCALE
from implicitq.types import InputError
from implicitq.validation import brief, nearest, read_settings

_FIXED = {*configs.RESERVED, *SCALE}  # with several of these, trials could not be compared, or nothing differs
_WIDE = 20  # from this ratio of the ends on, a range is searched by orders of magnitude


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    log: bool  # uniform over the logarithm
    whole: bool  # whole numbers only

    def told(self) -> str:
        return f"{self.low:g} to {self.high:g}{', by orders of magnitude' if self.log else ''}"


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def told(self) -> str:
        return " or ".join("-".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in self.values)


Dimension = Range | Choice
Space = Mapping[str, Dimension]


def default_space(config: Config, given: Collection[str] = ()) -> dict[str, Dimension]:
    """What is worth searching for this algorithm, except what the user has `given`."""
    temperature, alpha = getattr(config, "temperature", None), getattr(config, "alpha", None)
    space: dict[str, Dimension] = {"learning_rate": Range(3e-5, 3e-3, True, False)}
    space["batch_size"] = Choice((64, 128, 256, 512))
    space["discount"] = Choice((0.98, 0.99, 0.995))
    if not isinstance(config, SACConfig):
        space["n_step"] = Range(1, 5, False, True)
    if not getattr(config, "batch_norm", False):
        space["target_update"] = Range(2e-3, 1e-1, True, False)
    if isinstance(temperature, int | float) and temperature > 0:
        space["temperature"] = Range(temperature / 10, temperature * 10, True, False)
    if temperature == "auto":
        space["temperature_learning_rate"] = Range(3e-4, 1e-2, True, False)
    if alpha:
        space["alpha"] = Range(0.5, 0.99, False, False)
    if getattr(config, "epsilon", 0.0) > 0:
        space["epsilon"] = Range(0.01, 0.3, True, False)
    return {name: dimension for name, dimension in space.items() if name not in given}


def read_space(words: Sequence[str], config: Config) -> dict[str, Dimension]:
    """A space that the user gives: one .toml file, or words such as learning_rate=1e-5..1e-3 and bins=5,11,21."""
    if len(words) == 1 and words[0].endswith(".toml"):
        path = Path(words[0])
        tables = read_settings(path)
        return {name: _checked(name, _of_table(f"{path}: {name}", data), config) for name, data in tables.items()}
    space: dict[str, Dimension] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not text:
            raise InputError(
                f"space is a .toml file, or words such as learning_rate=1e-5..1e-3 and bins=5,11,21, got {brief(word)}"
            )
        name = name.removeprefix("--").replace("-", "_")
        space[name] = _checked(name, _of_text(text), config)
    return space


def _of_table(where: str, data: Any) -> dict[str, Any]:
    """low, high and perhaps log; or choices."""
    known = ("low", "high", "log", "choices")
    if not isinstance(data, dict) or not ({"low", "high"} <= data.keys() or data.keys() == {"choices"}):
        raise InputError(f"{where} must have low and high (and log = true), or choices, got {brief(data)}")
    for key in data:
        if key not in known:
            raise InputError(f"{where} has no {key!r}{nearest(key, known)}")
    if not isinstance(data.get("log", False), bool):
        raise InputError(f"{where}: log must be true or false, got {brief(data['log'])}")
    if not isinstance(data.get("choices", []), list):
        raise InputError(f"{where}: choices must be a list, got {brief(data['choices'])}")
    return data


def _of_text(text: str) -> dict[str, Any]:
    if ".." in text:
        low, _, high = text.partition("..")
        return {"low": _value(low), "high": _value(high)}
    return {"choices": [_value(part) for part in text.split(",")]}


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _checked(name: str, data: Mapping[str, Any], config: Config) -> Dimension:
    """The dimension, if the config accepts its values and trials with them can be compared."""
    if name in _FIXED:
        raise InputError(f"{name} cannot be searched: trials are compared at the same {name}")
    if "choices" in data:
        values = tuple(tuple(value) if isinstance(value, list) else value for value in data["choices"])
        if len(set(map(repr, values))) < max(2, len(values)):
            raise InputError(f"{name} needs at least two different choices, got {brief(data['choices'])}")
        for value in values:
            configs.changed(config, **{name: value})
        return Choice(values)
    low, high = data["low"], data["high"]
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, int | float) or not abs(end) < 2**63:
            raise InputError(
                f"{name} needs a range between two numbers below 2**63, got {brief(low)} and {brief(high)}"
            )
        configs.changed(config, **{name: end})
    if not low < high:
        raise InputError(f"the range of {name} must rise, got {low} to {high}")
    log = data.get("log", low > 0 and high / low >= _WIDE)
    if log and low <= 0:
        raise InputError(f"{name} cannot be searched by orders of magnitude from {low}")
    hint = typing.get_type_hints(type(config))[name]
    kinds = typing.get_args(hint) or (hint,)
    whole = int in kinds and float not in kinds
    return Range(int(low) if whole else float(low), int(high) if whole else float(high), log, whole)


def to_json(space: Space) -> dict[str, Any]:
    """Plain data, the same for equal spaces."""
    return json.loads(json.dumps({name: vars(dimension) for name, dimension in space.items()}))
