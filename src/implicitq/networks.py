"""Fully connected networks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp

_MOMENTUM = 0.99  # of the running statistics, per update
_SMALL_VARIANCE = 1e-3  # added to variances, so that constant features do no harm


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
        return self._apply(inputs - self.mean[None], self.variance)

    def train(self, inputs: jax.Array, beside: jax.Array) -> tuple[jax.Array, jax.Array, BatchNorm]:
        """Normalise both by the mean and variance of all their rows: [B, features], [C, features].

        Also gives the layer with its running statistics moved towards these.
        """
        rows = inputs.shape[0] + beside.shape[0]
        mean = (_column_sums(inputs) + _column_sums(beside)) / rows
        inputs, beside = inputs - mean[None], beside - mean[None]
        variance = (_column_sums(jnp.square(inputs)) + _column_sums(jnp.square(beside))) / rows
        old, new = (self.mean, self.variance), jax.lax.stop_gradient((mean, variance))
        moved = tuple(_MOMENTUM * before + (1 - _MOMENTUM) * now for before, now in zip(old, new, strict=True))
        layer = eqx.tree_at(lambda layer: (layer.mean, layer.variance), self, moved)
        return self._apply(inputs, variance), self._apply(beside, variance), layer

    def _apply(self, centred: jax.Array, variance: jax.Array) -> jax.Array:
        return centred * (self.scale * jax.lax.rsqrt(variance + _SMALL_VARIANCE))[None] + self.shift[None]


def _column_sums(rows: jax.Array) -> jax.Array:
    """As a product, which on processors is faster than XLA's own sum over columns."""
    return (jnp.ones((1, rows.shape[0])) @ rows)[0]


class MLP(eqx.Module):
    """FC-ReLU-...-FC. Weights start uniform in +-sqrt(3 / fan_in), biases at zero.

    With `batch_norm`, the inputs of every layer are normalised, those of the network included.
    """

    weights: tuple[jax.Array, ...]  # [inputs, outputs] each
    biases: tuple[jax.Array, ...]
    norms: tuple[BatchNorm, ...]  # one per layer, or none

    def __init__(self, sizes: Sequence[int], key: jax.Array, batch_norm: bool = False) -> None:
        keys = jax.random.split(key, len(sizes) - 1)
        self.weights = tuple(
            jax.random.uniform(k, (inputs, outputs), minval=-1.0, maxval=1.0) * math.sqrt(3 / inputs)
            for k, inputs, outputs in zip(keys, sizes[:-1], sizes[1:], strict=True)
        )
        self.biases = tuple(jnp.zeros(outputs) for outputs in sizes[1:])
        self.norms = tuple(map(BatchNorm, sizes[:-1])) if batch_norm else ()

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """[B, inputs] -> [B, outputs]; batches are normalised by the running statistics."""
        hidden = inputs
        for number in range(len(self.weights)):
            if self.norms:
                hidden = self.norms[number](hidden)
            hidden = self._layer(number, hidden)
        return hidden

    def train(self, inputs: jax.Array, beside: jax.Array) -> tuple[jax.Array, jax.Array, MLP]:
        """The network on both, as a loss sees it; no gradient flows through `beside`.

        With batch normalisation, both are normalised as one batch, and the network comes back with its running
        statistics moved towards those of the batch. [B, inputs], [C, inputs] -> [B, outputs], [C, outputs].
        """
        if not self.norms:
            return self(inputs), jax.lax.stop_gradient(self(beside)), self
        moved = []
        for number, norm in enumerate(self.norms):
            inputs, beside, norm = norm.train(inputs, jax.lax.stop_gradient(beside))
            moved.append(norm)
            inputs, beside = self._layer(number, inputs), self._layer(number, beside)
        return inputs, jax.lax.stop_gradient(beside), eqx.tree_at(lambda network: network.norms, self, tuple(moved))

    def _layer(self, number: int, inputs: jax.Array) -> jax.Array:
        outputs = inputs @ self.weights[number] + self.biases[number][None]
        return outputs if number == len(self.weights) - 1 else jax.nn.relu(outputs)


class StateValue(eqx.Module):
    """V(s)."""

    network: MLP

    def __init__(self, observation_size: int, hidden: Sequence[int], key: jax.Array, batch_norm: bool = False) -> None:
        self.network = MLP((observation_size, *hidden, 1), key, batch_norm)

    def __call__(self, observation: jax.Array) -> jax.Array:
        """[B, O] -> [B]."""
        return self.network(observation)[:, 0]

    def train(self, observation: jax.Array, beside: jax.Array) -> tuple[jax.Array, jax.Array, StateValue]:
        """As `MLP.train`: [B, O], [C, O] -> [B], [C]."""
        here, there, network = self.network.train(observation, beside)
        return here[:, 0], there[:, 0], eqx.tree_at(lambda value: value.network, self, network)


class ActionValue(eqx.Module):
    """Q(s, a) of continuous actions."""

    network: MLP

    def __init__(self, observation_size: int, action_dimensions: int, hidden: Sequence[int], key: jax.Array) -> None:
        self.network = MLP((observation_size + action_dimensions, *hidden, 1), key)

    def __call__(self, observation: jax.Array, action: jax.Array) -> jax.Array:
        """[B, O], [B, D] -> [B]."""
        return self.network(jnp.concatenate([observation, action], axis=-1))[:, 0]


class TwinActionValue(eqx.Module):
    """Two independent Q(s, a): their minimum overestimates less."""

    first: ActionValue
    second: ActionValue

    def __init__(self, observation_size: int, action_dimensions: int, hidden: Sequence[int], key: jax.Array) -> None:
        first_key, second_key = jax.random.split(key)
        self.first = ActionValue(observation_size, action_dimensions, hidden, first_key)
        self.second = ActionValue(observation_size, action_dimensions, hidden, second_key)

    def __call__(self, observation: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.first(observation, action), self.second(observation, action)
