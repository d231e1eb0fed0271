"""What the implicit Q-value becomes at the ends of its range: the architectures that Sec. 3.3 and Sec. 5 connect it to.

Each function is the other side of a limit, written on its own; docs/algorithms.md has the statements, the tests the
numbers. Shapes: B batch, D action dimensions, N categories; F is a network's raw output, in units of reward.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from implicitq import equations


def soft_dueling(advantage: jax.Array, value: jax.Array, temperature: float) -> jax.Array:
    """IQ with the scaled softmax (Sec. 3.3): Q = F - T ln sum exp(F / T) + V. [B, N], [B] -> [B, N]."""
    return advantage - equations.soft_maximum(advantage, temperature)[:, None] + value[:, None]


def dueling(advantage: jax.Array, value: jax.Array) -> jax.Array:
    """The dueling network, Q = F - max F + V: the limit of `soft_dueling` for T -> 0. [B, N], [B] -> [B, N]."""
    return advantage - jnp.max(advantage, axis=1, keepdims=True) + value[:, None]


def dueling_mean(advantage: jax.Array, value: jax.Array) -> jax.Array:
    """The dueling network as it is used in practice, Q = F - mean F + V. [B, N], [B] -> [B, N].

    It is the other end of the same line: `soft_dueling` with V raised by T ln N, for T -> infinity.
    """
    return advantage - jnp.mean(advantage, axis=1, keepdims=True) + value[:, None]


def advantage_learning_target(
    reward: jax.Array, discount: jax.Array, q: jax.Array, action: jax.Array, next_q: jax.Array, alpha: float
) -> jax.Array:
    """r + alpha (Q(s, a) - max Q(s, .)) + gamma max Q(s', .): the target of Eq. 2 for alpha > 0, T -> 0.

    Q is the target networks' implicit Q-value. [B], [B], [B, N], [B, 1], [B, N] -> [B]. To train with it: the
    algorithm `dqn` with alpha > 0.
    """
    gap = jnp.take_along_axis(q, action, axis=1)[:, 0] - jnp.max(q, axis=1)
    return reward + alpha * gap + discount * jnp.max(next_q, axis=1)


def action_branching(branches: jax.Array, value: jax.Array, action: jax.Array) -> jax.Array:
    """Q = V + sum_j (F_j(a_j) - max F_j): IQ with a multicategorical policy for alpha = 0, T -> 0.

    One branch per action dimension on a shared core. [B, D, N], [B], [B, D] -> [B].
    """
    picked = jnp.take_along_axis(branches, action[..., None], axis=2)[..., 0]  # [B, D]
    return value + jnp.sum(picked - jnp.max(branches, axis=2), axis=1)


class QuadraticAdvantage(NamedTuple):
    """NAF: Q(s, a) = peak(s) - 1/2 sum_j precision_j(s) (a_j - mean_j(s))^2."""

    peak: jax.Array  # [B], the maximum over actions
    mean: jax.Array  # [B, D]
    precision: jax.Array  # [B, D]

    def q_value(self, action: jax.Array) -> jax.Array:
        return self.peak - 0.5 * jnp.sum(self.precision * jnp.square(action - self.mean), axis=1)


def normalized_advantage(mean: jax.Array, scale: jax.Array, value: jax.Array, temperature: float) -> QuadraticAdvantage:
    """NAF's form of the implicit Q-value of a normal policy within [-1, 1]; no limit, the two are equal at every T.

    T ln pi(a) + V = peak - 1/2 sum_j (T / scale_j^2) (a_j - mean_j)^2
    with peak = V - T sum_j (ln scale_j + ln(2 pi) / 2 + ln mass_j), mass_j that of the normal between the bounds.
    """
    mass = norm.cdf((1 - mean) / scale) - norm.cdf((-1 - mean) / scale)
    peak = value - temperature * jnp.sum(jnp.log(scale * mass) + 0.5 * math.log(2 * math.pi), axis=1)
    return QuadraticAdvantage(peak, mean, temperature / jnp.square(scale))
