"""Autoregressive choices, one dimension after the other: pi(a|s) = prod_j pi_j(a_j | s, a_1 ... a_(j-1)).

Any joint distribution over the choices can be written like this, also one in which dimensions depend on each other,
which no product of independent policies holds (Sec. 4 names it as future work). Every factor is a softmax, so pi is
normalised, and `Q = T ln pi + V` stays exact. Training needs one pass for all factors, with weights masked so that each
sees the choices before its own only; drawing an action takes one small step per dimension.

Shapes: B batch, D action dimensions, N categories (the most of any dimension), U hidden units per dimension.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from implicitq.configs import ImplicitConfig
from implicitq.networks import Network, network_for
from implicitq.policies.base import ChoicePolicy, bin_centres
from implicitq.types import Spec

_UNITS = 32  # U


class Autoregressive(eqx.Module):
    """Choices that depend on the choices before them."""

    seen: jax.Array  # [B, D, U]: what every factor sees of the state
    links: jax.Array  # [D, N, D, U]: what a choice in one dimension adds to the units of another; only later ones
    heads: jax.Array  # [D, U, N]
    biases: jax.Array  # [D, N]
    temperature: jax.Array | float  # that logits are divided by
    allowed: jax.Array | None = None  # [1 or B, D, N]: categories that exist and are not forbidden; None: all
    log_width: float = eqx.field(static=True, default=0.0)  # ln of a bin's width, for a density; 0 for probabilities
    continuous: bool = eqx.field(static=True, default=False)  # the categories are bins of [-1, 1]

    def logits(self, action: jax.Array) -> jax.Array:
        """Logits of every factor, given the choices before its own in `action`: [B, D] -> [B, D, N]."""
        dimensions, categories = self.biases.shape
        chosen = jax.nn.one_hot(action, categories).reshape(action.shape[0], -1)  # [B, D N]
        linked = chosen @ self.links.reshape(dimensions * categories, -1)
        hidden = jax.nn.relu(self.seen + linked.reshape(self.seen.shape))
        return self._restricted(jnp.einsum("bdu,dun->bdn", hidden, self.heads) + self.biases[None])

    def log_prob(self, action: jax.Array) -> jax.Array:
        """ln pi(a|s) = sum_j ln pi_j(a_j | s, a_<j) - ln width: [B, D] -> [B]."""
        log_pi = jax.nn.log_softmax(self.logits(action))
        chosen = action[..., None] == jnp.arange(log_pi.shape[-1])[None, None]
        return jnp.sum(jnp.sum(log_pi, axis=-1, where=chosen) - self.log_width, axis=-1)

    def sample(self, key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, self.seen.shape[1])
        return self._one_by_one(lambda dimension, logits: jax.random.categorical(keys[dimension], logits))

    def entropy(self, key: jax.Array) -> jax.Array:
        """Nats of every factor, given choices drawn before it: exact in each, an estimate over what precedes."""
        log_pi = jax.nn.log_softmax(self.logits(self.sample(key)))
        finite = jnp.where(jnp.isneginf(log_pi), 0.0, log_pi)
        return self.log_width - jnp.sum(jnp.exp(log_pi) * finite, axis=-1)  # [B, D]

    def deterministic(self) -> jax.Array:
        """The most likely choice in each dimension after those before: [B, D].

        Not the expected action: the mean of two good joint actions need not be a good one.
        """
        modes = self._one_by_one(lambda _, logits: jnp.argmax(logits, axis=-1))
        return jnp.asarray(bin_centres(self.biases.shape[1]))[modes] if self.continuous else modes

    def allowing(self, mask: jax.Array) -> Autoregressive:
        return dataclasses.replace(self, allowed=mask if self.allowed is None else mask & self.allowed)

    def _one_by_one(self, choose: Callable[[int, jax.Array], jax.Array]) -> jax.Array:
        """Choices by a function of the dimension and its logits [B, N]: [B, D]."""
        units, chosen = self.seen, []
        for dimension in range(self.seen.shape[1]):
            hidden = jax.nn.relu(units[:, dimension])
            logits = hidden @ self.heads[dimension] + self.biases[dimension][None]
            chosen.append(choose(dimension, self._restricted(logits[:, None], dimension)[:, 0]))
            units = units + self.links[dimension][chosen[-1]]  # [B, D, U]
        return jnp.stack(chosen, axis=-1)

    def _restricted(self, logits: jax.Array, dimension: int | None = None) -> jax.Array:
        """The logits, scaled, with minus infinity for what is not allowed: of all dimensions, or of one."""
        logits = logits / self.temperature
        if self.allowed is None:
            return logits
        some = self.allowed if dimension is None else self.allowed[:, dimension : dimension + 1]
        return jnp.where(some, logits, -jnp.inf)


def build(config: ImplicitConfig, spec: Spec, key: jax.Array) -> AutoregressivePolicy:
    return AutoregressivePolicy(config, spec, key)


class AutoregressivePolicy(ChoicePolicy):
    """One network for what the factors see of the state, and a hidden layer that links the dimensions."""

    network: Network
    links: jax.Array  # [D, N, D, U]
    heads: jax.Array  # [D, U, N]
    biases: jax.Array  # [D, N]

    def __init__(self, config: ImplicitConfig, spec: Spec, key: jax.Array) -> None:
        super().__init__(spec, config.bins, config.softmax == "scaled", config.log_policy == "density")
        dimensions, categories = len(self.categories), max(self.categories)
        network_key, links_key, heads_key = jax.random.split(key, 3)
        self.network = network_for(spec, config.hidden, dimensions * _UNITS, network_key, config.batch_norm)
        # Uniform in +-sqrt(3 / fan_in), as in `MLP`; of the inputs of a link one per dimension is not zero.
        self.links = _uniform(links_key, (dimensions, categories, dimensions, _UNITS), dimensions)
        self.heads = _uniform(heads_key, (dimensions, _UNITS, categories), _UNITS)
        self.biases = jnp.zeros((dimensions, categories))

    def distribution(self, outputs: jax.Array, temperature: jax.Array | float) -> Autoregressive:
        dimensions = len(self.categories)
        later = np.triu(np.ones((dimensions, dimensions), np.float32), 1)  # from a dimension to those after it
        return Autoregressive(
            outputs.reshape(outputs.shape[0], dimensions, _UNITS),
            self.links * later[:, None, :, None],
            self.heads,
            self.biases,
            temperature if self.scaled else 1.0,
            None if self.exists is None else jnp.asarray(self.exists)[None],
            self.log_width,
            self.continuous,
        )


def _uniform(key: jax.Array, shape: tuple[int, ...], fan_in: int) -> jax.Array:
    return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0) * math.sqrt(3 / fan_in)
