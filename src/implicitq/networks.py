"""Fully connected networks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp


class MLP(eqx.Module):
    """FC-ReLU-...-FC. Weights start uniform in +-sqrt(3 / fan_in), biases at zero."""

    weights: tuple[jax.Array, ...]  # [inputs, outputs] each
    biases: tuple[jax.Array, ...]

    def __init__(self, sizes: Sequence[int], key: jax.Array) -> None:
        keys = jax.random.split(key, len(sizes) - 1)
        self.weights = tuple(
            jax.random.uniform(k, (inputs, outputs), minval=-1.0, maxval=1.0) * math.sqrt(3 / inputs)
            for k, inputs, outputs in zip(keys, sizes[:-1], sizes[1:], strict=True)
        )
        self.biases = tuple(jnp.zeros(outputs) for outputs in sizes[1:])

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """[B, inputs] -> [B, outputs]."""
        hidden = inputs
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = jax.nn.relu(hidden @ weight + bias[None])
        return hidden @ self.weights[-1] + self.biases[-1][None]


class StateValue(eqx.Module):
    """V(s)."""

    network: MLP

    def __init__(self, observation_size: int, hidden: Sequence[int], key: jax.Array) -> None:
        self.network = MLP((observation_size, *hidden, 1), key)

    def __call__(self, observation: jax.Array) -> jax.Array:
        """[B, O] -> [B]."""
        return self.network(observation)[:, 0]


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
