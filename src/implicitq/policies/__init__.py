"""Policy classes, one file each. `configs.POLICIES` lists those that implicit algorithms can have."""

from __future__ import annotations

import importlib

import jax

from implicitq.configs import POLICIES, ImplicitConfig
from implicitq.policies.base import Distribution, FactoredDistribution, NetworkPolicy, Policy, restricted
from implicitq.types import Spec


def build(config: ImplicitConfig, spec: Spec, key: jax.Array) -> Policy:
    """The policy that the config names, untrained."""
    return importlib.import_module(POLICIES[config.policy].module).build(config, spec, key)


__all__ = ["Distribution", "FactoredDistribution", "NetworkPolicy", "Policy", "build", "restricted"]
