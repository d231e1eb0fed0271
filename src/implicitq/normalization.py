"""Normalisation of observations, by running statistics, and of the inputs of layers, by those of a batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from implicitq.types import PyTree

_CLIP = 10.0
_EPSILON = 1e-6

_MOMENTUM = 0.99  # of the running statistics of batches, per update
_SMALL_VARIANCE = 1e-3  # added to variances of batches, so that constant features do no harm


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


class BatchNorm(eqx.Module):
    """Every feature brought to mean 0 and variance 1, then to a learnt scale and shift.

    Training uses the statistics of its batch (`train`), acting the running ones, which no gradient reaches.
    """

    scale: jax.Array  # [features], as all others
    shift: jax.Array
    mean: jax.Array
    variance: jax.Array

    def __init__(self, features: int) -> None:
        self.scale, self.shift = jnp.ones(features), jnp.zeros(features)
        self.mean, self.variance = jnp.zeros(features), jnp.ones(features)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """[B, features] -> [B, features]."""
        factor = self.scale * jax.lax.rsqrt(self.variance + _SMALL_VARIANCE)
        return (inputs - self.mean[None]) * factor[None] + self.shift[None]

    def train(self, inputs: jax.Array, beside: jax.Array) -> tuple[jax.Array, jax.Array, BatchNorm]:
        """Normalise both by the mean and variance of all their rows: [B, features], [C, features].

        Also gives the layer with its running statistics moved towards these.
        """
        inputs, beside, mean, variance = _normalise(inputs, beside, self.scale, self.shift)
        old, new = (self.mean, self.variance), jax.lax.stop_gradient((mean, variance))
        moved = tuple(_MOMENTUM * before + (1 - _MOMENTUM) * now for before, now in zip(old, new, strict=True))
        return inputs, beside, eqx.tree_at(lambda layer: (layer.mean, layer.variance), self, moved)


def trained(tree: PyTree) -> PyTree:
    """The tree with None in place of running statistics of batch normalisation, which no gradient changes."""

    def part(node: PyTree) -> PyTree:
        norm = isinstance(node, BatchNorm)
        return eqx.tree_at(lambda norm: (norm.mean, norm.variance), node, (None, None)) if norm else node

    return jax.tree.map(part, tree, is_leaf=lambda node: isinstance(node, BatchNorm))


def column_sums(rows: jax.Array) -> jax.Array:
    """The sum of every column, as a matrix product: on CPUs that is faster than XLA's own sum."""
    return (jnp.ones((1, rows.shape[0])) @ rows)[0]


@jax.custom_vjp
def _normalise(
    inputs: jax.Array, beside: jax.Array, scale: jax.Array, shift: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Both as one batch, normalised, scaled and shifted; its mean and variance. Gradients go through `inputs` alone.

    Differentiated by hand: one forward pass over both, and few backward passes over `inputs`.
    """
    return _forwards(inputs, beside, scale, shift)[0]


def _forwards(inputs: jax.Array, beside: jax.Array, scale: jax.Array, shift: jax.Array) -> tuple[Any, Any]:
    both = jnp.concatenate([inputs, beside])
    mean = column_sums(both) / both.shape[0]
    centred = both - mean[None]
    variance = column_sums(jnp.square(centred)) / both.shape[0]
    deviation = jax.lax.rsqrt(variance + _SMALL_VARIANCE)
    outputs = centred * (scale * deviation)[None] + shift[None]
    given = inputs, mean, deviation, scale, both.shape[0]
    return (outputs[: len(inputs)], outputs[len(inputs) :], mean, variance), given


def _backwards(given: Any, gradients: Any) -> tuple[Any, ...]:
    """With x^ the normalised inputs and g their gradient: scale deviation (g - (sum g + x^ sum(g x^)) / (B + C))."""
    inputs, mean, deviation, scale, rows = given
    gradient = gradients[0]
    normal = (inputs - mean[None]) * deviation[None]
    shift_gradient, scale_gradient = column_sums(gradient), column_sums(gradient * normal)
    share = (shift_gradient[None] + normal * scale_gradient[None]) / rows
    return (scale * deviation)[None] * (gradient - share), jnp.zeros_like(gradients[1]), scale_gradient, shift_gradient


_normalise.defvjp(_forwards, _backwards)
