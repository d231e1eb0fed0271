"""Presets of your own: .toml or .json files with the name of an algorithm and settings. `implicitq tune` writes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from implicitq.types import InputError
from implicitq.validation import brief, nearest, read_settings

FILE = "file"
"""What a config remembers of a preset from a file; its values are in the config. Nobody can ask for it."""
ACCEPTED = "'paper', 'none' or the path of a .toml or .json file"
"""What one can ask for."""

RESERVED = ("algorithm", "env", "seed", "preset")
"""What says which run it is: no file of settings has these, and no run changes them."""
_KNOWN = ("algorithm", "settings", "about")


def is_path(preset: Any) -> bool:
    return isinstance(preset, Path) or (isinstance(preset, str) and preset.endswith((".toml", ".json")))


def read_preset(path: Path, algorithm: str) -> dict[str, Any]:
    """The settings of a preset file; whether the algorithm takes them is seen with its config."""
    data = read_settings(path)
    if not isinstance(data, dict):
        raise InputError(f"{path} must hold a table with algorithm and settings, got {brief(data)}")
    for key in data:
        if key not in _KNOWN:
            raise InputError(f"{path}: a preset has no {key!r}{nearest(key, _KNOWN)}")
    if "algorithm" not in data:
        raise InputError(f"{path} does not say which algorithm it is for, such as: algorithm = {algorithm!r}")
    if data["algorithm"] != algorithm:
        raise InputError(f"{path} is a preset for {brief(data['algorithm'])}, and cannot be used for {algorithm!r}")
    settings = data.get("settings")
    if not isinstance(settings, dict):
        raise InputError(f"{path}: settings must be a table of hyperparameters, got {brief(settings)}")
    for name in RESERVED:
        if name in settings:
            raise InputError(f"{path}: a preset cannot set {name}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
