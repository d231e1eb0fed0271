"""Policy classes, one file each."""

from __future__ import annotations

import jax

from implicitq.configs import ImplicitConfig
from implicitq.policies.base import Distribution, Policy
from implicitq.policies.gaussian import Gaussian, GaussianPolicy
from implicitq.policies.multicategorical import Multicategorical, MulticategoricalPolicy, bin_centres
from implicitq.policies.tanh_gaussian import TanhGaussian, TanhGaussianPolicy
from implicitq.types import Spec


def build(config: ImplicitConfig, spec: Spec, key: jax.Array, batch_norm: bool) -> Policy:
    """The policy that the config names, untrained."""
    scaled = config.softmax == "scaled"
    match config.policy:
        case "multicategorical":
            density = config.log_policy == "density"
            return MulticategoricalPolicy(
                spec, config.hidden, config.bins, key, scaled=scaled, density=density, batch_norm=batch_norm
            )
        case "gaussian":
            return GaussianPolicy(spec, config.hidden, key, scaled=scaled, batch_norm=batch_norm)


__all__ = [
    "Distribution",
    "Gaussian",
    "GaussianPolicy",
    "Multicategorical",
    "MulticategoricalPolicy",
    "Policy",
    "TanhGaussian",
    "TanhGaussianPolicy",
    "bin_centres",
    "build",
]
