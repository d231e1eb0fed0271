"""Hyperparameters: one frozen config per algorithm, its checks, the tables of presets. Needs no JAX."""

from implicitq.configs.fields import (
    POLICIES,
    Config,
    DQNConfig,
    ImplicitConfig,
    IQConfig,
    PCLConfig,
    PolicyEntry,
    SACConfig,
    Weights,
    weights,
)
from implicitq.configs.files import LAYOUT, from_file, from_json, refuse_outdated, to_file, to_json
from implicitq.configs.presets import (
    ALGORITHMS,
    PRESETS,
    AlgorithmEntry,
    changed,
    describe_preset,
    draft,
    make_room,
    preset_values,
    resolve,
)

__all__ = [
    "ALGORITHMS",
    "LAYOUT",
    "POLICIES",
    "PRESETS",
    "AlgorithmEntry",
    "Config",
    "DQNConfig",
    "IQConfig",
    "ImplicitConfig",
    "PCLConfig",
    "PolicyEntry",
    "SACConfig",
    "Weights",
    "changed",
    "describe_preset",
    "draft",
    "from_file",
    "from_json",
    "make_room",
    "preset_values",
    "refuse_outdated",
    "resolve",
    "to_file",
    "to_json",
    "weights",
]
