"""The algorithms by name, the settings of known tasks, and the config that comes of both."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from implicitq.configs.fields import POLICIES, Config, DQNConfig, IQConfig, PCLConfig, SACConfig
from implicitq.configs.preset_files import ACCEPTED, FILE, is_path, read_preset
from implicitq.types import InputError
from implicitq.validation import nearest


@dataclass(frozen=True)
class AlgorithmEntry:
    """A name a user can train: a config class with the values that make the name."""

    config: type[Config]
    values: Mapping[str, Any]
    summary: str


_ADAPTIVE = {
    "temperature": "auto",
    "batch_norm": True,
    "target_update": 0.05,  # unused with batch_norm; it stays because study tables tell runs apart by all settings
    "n_step": 5,
    "learning_rate": 1e-3,
    "adam_b1": 0.5,
    "temperature_learning_rate": 3e-3,
    "actor_average": 1e-3,
    "min_replay": 5_000,
    "warmup": "uniform",
}

ALGORITHMS: dict[str, AlgorithmEntry] = {
    "iq-auto": AlgorithmEntry(
        IQConfig,
        {
            **_ADAPTIVE,
            "members": 2,
            "calibration": 0.2,
            "calibration_decay": 10_000,
            "bound_values": True,
            "learning_rate_decay": 10_000,
            "n_step": 3,
            "batch_size": 256,
            "log_policy": "centred",
            "softmax": "steady",
            "entropy_states": "visited",
        },
        "learnt temperature, two members with batch normalisation; one setting for all MuJoCo tasks",
    ),
    "iq": AlgorithmEntry(IQConfig, {}, "implicit Q-values, entropy regularisation (alpha = 0)"),
    "miq": AlgorithmEntry(
        IQConfig,
        {"temperature": 0.1, "alpha": 0.9},
        "Munchausen IQ, entropy and KL regularisation (alpha = 0.9)",
    ),
    "iq-gaussian": AlgorithmEntry(IQConfig, {"policy": "gaussian"}, "IQ with a diagonal normal policy; Box only"),
    "miq-gaussian": AlgorithmEntry(
        IQConfig,
        {"policy": "gaussian", "temperature": 0.1, "alpha": 0.9},
        "M-IQ with a diagonal normal policy; Box only",
    ),
    "pcl": AlgorithmEntry(PCLConfig, {}, "path consistency learning, the residual form of IQ"),
    "trust-pcl": AlgorithmEntry(PCLConfig, {"temperature": 1e-3, "alpha": 0.9}, "Trust-PCL, the residual form of M-IQ"),
    "sac": AlgorithmEntry(SACConfig, {}, "soft actor-critic, the baseline; Box only"),
    "mdqn": AlgorithmEntry(DQNConfig, {}, "Munchausen DQN, explicit Q-network; Discrete only"),
    "dqn": AlgorithmEntry(
        DQNConfig,
        {"temperature": 0.0, "alpha": 0.0, "munchausen_clip": None, "epsilon": 0.1},
        "DQN, greedy but for epsilon = 0.1; Discrete only",
    ),
}

# All names that are accepted: those above, and some that help does not list, for files and studies that have them.
KNOWN: dict[str, AlgorithmEntry] = {
    **ALGORITHMS,
    "miq-auto": AlgorithmEntry(
        IQConfig,
        {**_ADAPTIVE, "softmax": "scaled", "log_policy": "density", "n_step_target": "soft", "batch_size": 128},
        "learnt temperature, one network with batch normalisation and log-densities",
    ),
}

# The one table of per-task settings: task -> algorithm ("*" for all) -> values. Humanoid, Walker2d and Adroit are
# the paper's "best parameters" (App. B.2, B.3); the small tasks are ours.
_SMALL = {"hidden": (256, 256), "min_replay": 1_000, "eval_every": 1_000, "checkpoint_every": 5_000}
_SLOW_IQ = {name: {"learning_rate": 3e-5} for name in ("iq", "miq")}
_ADROIT = {"iq": {"temperature": 0.001}, "miq": {"temperature": 0.01}, "sac": {"learning_rate": 3e-5}}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "Pendulum": {  # few steps, so two updates in each, at constant step sizes; at the top it has to be sure of itself
        "*": {**_SMALL, "steps": 10_000},
        "iq-auto": {
            "steps": 15_000,
            "updates_per_step": 2,
            "learning_rate_decay": None,
            "calibration_decay": None,
            "entropy_states": "replay",
            "softmax": "plain",
        },
    },
    "CartPole": {"*": {**_SMALL, "steps": 10_000}},
    "InvertedPendulum": {"*": {**_SMALL, "steps": 10_000}},
    "Acrobot": {"*": {**_SMALL, "steps": 20_000}},
    "Humanoid": _SLOW_IQ,
    "Walker2d": _SLOW_IQ,
    "AdroitHandDoor": _ADROIT,
    "AdroitHandHammer": _ADROIT,
    "AdroitHandPen": _ADROIT,
    "AdroitHandRelocate": _ADROIT,
}


def preset_values(algorithm: str, env: str) -> dict[str, Any]:
    """Settings that differ from the algorithm's defaults on this task."""
    task = re.sub(r"(-v\d+)?$", "", env.rsplit(":", 1)[-1].rsplit("/", 1)[-1])
    by_algorithm = PRESETS.get(task, {})
    return {**by_algorithm.get("*", {}), **by_algorithm.get(algorithm, {})}


def entry_of(algorithm: str) -> AlgorithmEntry:
    """What the name of an algorithm stands for, or a sentence that it is not known."""
    entry = KNOWN.get(algorithm)
    if entry is None:
        raise InputError(f"unknown algorithm {algorithm!r}{nearest(algorithm, ALGORITHMS)}")
    return entry


def resolve(algorithm: str, env: str, preset: str | Path = "paper", **overrides: Any) -> Config:
    """The config of `algorithm` on `env`: defaults, then the algorithm's values, the preset, the overrides.

    The preset is `paper`, `none`, or the path of a preset file (.toml or .json).
    """
    entry = entry_of(algorithm)
    _check_names(algorithm, entry.config, overrides)
    if is_path(preset):
        own = read_preset(Path(preset), algorithm)
        try:
            _check_names(algorithm, entry.config, own)
        except InputError as error:
            raise InputError(f"{preset}: {error}") from None
        preset = FILE
    elif preset == FILE:
        raise InputError(f"preset must be {ACCEPTED}, got {preset!r}")
    else:
        own = preset_values(algorithm, env) if preset == "paper" else {}
    values = dict(entry.values)
    for layer in (own, overrides):
        values |= {**make_room(algorithm, {name: value for name, value in layer.items() if value is not None}), **layer}
    return entry.config(**{**values, "algorithm": algorithm, "env": env, "preset": preset})  # pyright: ignore[reportArgumentType]


def changed(config: Config, **changes: Any) -> Config:
    """The same config with other values of some hyperparameters, checked."""
    _check_names(config.algorithm, type(config), changes)
    return dataclasses.replace(config, **changes)


def _check_names(algorithm: str, config: type[Config], names: Collection[str]) -> None:
    known = {field.name for field in dataclasses.fields(config)} - {"algorithm"}
    for name in names:
        if name not in known:
            raise InputError(f"{algorithm} has no hyperparameter {name!r}{nearest(name, known)}")


def draft(algorithm: str, env: str, preset: str | Path, given: Mapping[str, Any]) -> Config:
    """A config whose fields in `given` are still to be set, to values as words; it is checked only then."""
    unchecked = resolve(algorithm, env, preset)
    for name, value in make_room(algorithm, given).items():
        object.__setattr__(unchecked, name, value)
    return unchecked


def make_room(algorithm: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of the algorithm that step back for what the user gives.

    alpha and temperature become None where the weights are given another way, by kl or entropy; and steady logits plain
    for a policy class that has no such form.
    """
    values, apart = entry_of(algorithm).values, {"kl", "entropy"} & given.keys()
    room: dict[str, Any] = {}
    if apart and "alpha" not in given:
        room["alpha"] = None
    if len(apart) == 2 and "temperature" not in given and values.get("temperature") != "auto":
        room["temperature"] = None
    policy = given.get("policy")
    entry = POLICIES.get(policy) if isinstance(policy, str) else None
    if entry and not entry.rescales and values.get("softmax") == "steady" and "softmax" not in given:
        room["softmax"] = "plain"
    return room


def describe_preset(config: Config) -> str:
    """One line for the user: which values the task's preset brought in."""
    if config.preset == FILE:
        base = vars(resolve(config.algorithm, config.env, "none"))
        apart = {name: value for name, value in vars(config).items() if value != base[name] and name != "preset"}
        return f"preset: from a file; other than the defaults: {_listed(apart) or 'nothing'}"
    values = preset_values(config.algorithm, config.env) if config.preset == "paper" else {}
    kept = {name: value for name, value in values.items() if getattr(config, name) == value}
    if values and not kept:
        return f"preset: {config.env}: nothing, other values were given for all of it"
    if not kept:
        return "preset: none for this task" if config.preset == "paper" else "preset: none"
    return f"preset: {config.env}: {_listed(kept)}"


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_show(value)}" for name, value in values.items())


def _show(value: Any) -> str:
    return (
        "-".join(map(str, value))
        if isinstance(value, tuple)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )
