"""The paper's equations as pure functions.

Shapes: B batch. Every function works on arrays of any common shape; the losses call them with [B].
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from implicitq.types import PyTree


def implicit_q(log_pi: jax.Array, value: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """Eq. 1: Q(s, a) = temperature * ln pi(a|s) + V(s)."""
    return temperature * log_pi + value


def soft_maximum(q: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """V = T ln sum exp(Q / T) over the last axis (Eq. 1); the maximum if the temperature is the number 0."""
    if isinstance(temperature, int | float) and temperature == 0:
        return jnp.max(q, axis=-1)
    return temperature * jax.nn.logsumexp(q / temperature, axis=-1)


def munchausen_bonus(
    log_pi: jax.Array, alpha: jax.Array | float, temperature: jax.Array | float, clip: float | None = None
) -> jax.Array:
    """The implicit KL term of Eq. 2: alpha * temperature * ln pi_target(a|s).

    `clip` bounds temperature * ln pi to [-clip, 0], as Munchausen RL does; the IQ paper does not.
    """
    scaled = temperature * log_pi
    return alpha * (scaled if clip is None else jnp.clip(scaled, -clip, 0.0))


def target(reward: jax.Array, bonus: jax.Array | float, discount: jax.Array, next_value: jax.Array) -> jax.Array:
    """Regression target of Eq. 2: r + bonus + gamma V(s'); `discount` is zero after a termination."""
    return reward + bonus + discount * next_value


def squared_loss(prediction: jax.Array, target: jax.Array) -> jax.Array:
    """Eq. 2's empirical expectation: the mean of squares, without a factor 1/2."""
    return jnp.mean(jnp.square(target - prediction))


def polyak(target: PyTree, online: PyTree, rate: jax.Array | float) -> PyTree:
    """Sec. 6: target <- (1 - rate) target + rate online. (Algorithm 1 has rate on the wrong side.)"""
    return jax.tree.map(lambda old, new: old + rate * (new - old), target, online)
