"""The tanh-squashed normal policy of SAC: a = tanh(u) with u normal.

Shapes: B batch, O observation features, D action dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp

from implicitq.networks import Network, network_for
from implicitq.policies.gaussian import Gaussian
from implicitq.types import Spec

_LEAST_SCALE = 1e-3  # of the normal, as in Acme
_INSIDE = 1 - 1e-6  # actions are pulled this far inside the bounds before tanh is inverted


class TanhGaussian(eqx.Module):
    """The distribution of tanh(u), each dimension of u being normal."""

    normal: Gaussian

    def sample_and_log_prob(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """An action [B, D] and its log-density [B], computed before squashing, so that it is finite near the bounds."""
        u = self.normal.sample(key)
        return jnp.tanh(u), self._log_density(u)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-density of any action in [-1, 1]: [B, D] -> [B]. It grows without bound towards -1 and 1."""
        return self._log_density(jnp.arctanh(jnp.clip(action, -_INSIDE, _INSIDE)))

    def mode(self) -> jax.Array:
        return jnp.tanh(self.normal.mean)  # [B, D]

    def _log_density(self, u: jax.Array) -> jax.Array:
        """ln N(u) - sum_j ln(1 - tanh(u_j)^2), with ln(1 - tanh(u)^2) = 2 (ln 2 - u - softplus(-2u))."""
        squash = 2 * (math.log(2) - u - jax.nn.softplus(-2 * u))
        return self.normal.log_prob(u) - jnp.sum(squash, axis=-1)


class TanhGaussianPolicy(eqx.Module):
    """One network for mean and scale; scale = softplus + 0.001."""

    network: Network

    def __init__(self, spec: Spec, hidden: Sequence[int], key: jax.Array) -> None:
        self.network = network_for(spec, hidden, 2 * spec.action_dimensions, key)

    def __call__(self, observation: jax.Array) -> TanhGaussian:
        mean, raw = jnp.split(self.network(observation), 2, axis=-1)
        return TanhGaussian(Gaussian(mean, jax.nn.softplus(raw) + _LEAST_SCALE))
