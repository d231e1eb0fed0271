"""Running normalisation of observations."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

_CLIP = 10.0
_EPSILON = 1e-6


class Normalizer(NamedTuple):
    """Mean and variance of every feature over all batches seen so far."""

    mean: jax.Array  # [O]
    variance: jax.Array  # [O]
    seen_rows: jax.Array  # []

    @staticmethod
    def start(observation_size: int) -> Normalizer:
        return Normalizer(jnp.zeros(observation_size), jnp.ones(observation_size), jnp.zeros(()))

    def __call__(self, observation: jax.Array) -> jax.Array:
        """[..., O] -> the same shape."""
        features = (1,) * (observation.ndim - 1) + (-1,)
        scale = jax.lax.rsqrt(self.variance + _EPSILON)
        scaled = (observation - self.mean.reshape(features)) * scale.reshape(features)
        return jnp.clip(scaled, -_CLIP, _CLIP)

    def seen(self, observation: jax.Array) -> Normalizer:
        """Merge the moments of one more batch [B, O] (the parallel form of Welford's algorithm)."""
        total = self.seen_rows + observation.shape[0]
        share = observation.shape[0] / total
        shift = jnp.mean(observation, axis=0) - self.mean
        within = (1 - share) * self.variance + share * jnp.var(observation, axis=0)
        return Normalizer(self.mean + share * shift, within + share * (1 - share) * jnp.square(shift), total)
