"""The diagonal normal distribution, and the Gaussian policy of the paper's ablation (Sec. 6).

Shapes: B batch, O observation features, D action dimensions.

The policy is not squashed: it lives in the coordinates where the environment's bounds are -1 and 1, a sample is stored
as it was drawn, and only what the environment gets is clipped. So ln pi of a replayed action is a quadratic function
of it (which is NAF's advantage), finite and smooth at the bounds and beyond: nothing has to be inverted there.
ln pi is the logarithm of a density, which may be positive, in these coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from implicitq.configs import ImplicitConfig
from implicitq.networks import Network, network_for
from implicitq.policies.base import NetworkPolicy
from implicitq.types import Spec

# Below the least scale ln pi of a replayed action grows beyond use. Above the greatest, a third of even a centred
# normal is out of bounds, and what is learnt from clipped actions bends the quadratic ln pi away from its peak.
_LEAST_SCALE, _GREATEST_SCALE = 1e-3, 1.0


class Gaussian(eqx.Module):
    """Independent normal distributions, one per action dimension."""

    mean: jax.Array  # [B, D]
    scale: jax.Array  # [B, D], the standard deviation

    def log_prob(self, action: jax.Array) -> jax.Array:
        """ln pi(a|s) = -sum_j ((a_j - mean_j)^2 / (2 scale_j^2) + ln scale_j + ln(2 pi) / 2): [B, D] -> [B]."""
        deviation = (action - self.mean) / self.scale
        return -jnp.sum(0.5 * jnp.square(deviation) + jnp.log(self.scale) + 0.5 * math.log(2 * math.pi), axis=-1)

    def sample(self, key: jax.Array) -> jax.Array:
        return self.mean + self.scale * jax.random.normal(key, self.mean.shape)  # [B, D]

    def entropy(self, key: jax.Array) -> jax.Array:
        """Exact differential entropy of every dimension, in nats: [B, D]."""
        return jnp.log(self.scale) + 0.5 * math.log(2 * math.pi * math.e)

    def pool(self, others: Sequence[Gaussian]) -> tuple[Gaussian, jax.Array]:
        """Precisions are averaged, and means with them as weights; ln Z from completing the square."""
        mean = jnp.stack([self.mean, *(other.mean for other in others)])  # [M, B, D]
        precision = jnp.stack([self.scale, *(other.scale for other in others)]) ** -2
        common = jnp.mean(precision, axis=0)
        centre = jnp.mean(precision * mean, axis=0) / common
        spread = jnp.mean(precision * jnp.square(mean - centre[None]), axis=0)
        log_z = 0.5 * (jnp.mean(jnp.log(precision), axis=0) - jnp.log(common) - spread)
        return Gaussian(centre, common**-0.5), jnp.sum(log_z, axis=-1)

    def deterministic(self) -> jax.Array:
        """The mean, inside the bounds: [B, D]."""
        return jnp.clip(self.mean, -1.0, 1.0)


def build(config: ImplicitConfig, spec: Spec, key: jax.Array) -> GaussianPolicy:
    return GaussianPolicy(spec, config.hidden, key, scaled=config.softmax == "scaled", batch_norm=config.batch_norm)


class GaussianPolicy(NetworkPolicy):
    """One network for mean and scale; the scale is kept between 0.001 and 1 by a sigmoid, and starts near 0.5.

    The scaled form multiplies it by the root of the temperature.
    """

    network: Network
    scaled: bool = eqx.field(static=True)

    def __init__(
        self, spec: Spec, hidden: Sequence[int], key: jax.Array, *, scaled: bool = False, batch_norm: bool = False
    ) -> None:
        self.scaled = scaled
        self.network = network_for(spec, hidden, 2 * spec.action_dimensions, key, batch_norm)

    def distribution(self, outputs: jax.Array, temperature: jax.Array | float) -> Gaussian:
        """In the scaled form T ln pi is -(a - mean)^2 / (2 scale^2) with the unscaled scale, but for a constant.

        So it is in units of reward, as with scaled logits.
        """
        mean, raw = jnp.split(outputs, 2, axis=-1)
        scale = _LEAST_SCALE + (_GREATEST_SCALE - _LEAST_SCALE) * jax.nn.sigmoid(raw)
        if self.scaled:
            scale = jnp.maximum(scale * jnp.sqrt(temperature), _LEAST_SCALE)
        return Gaussian(mean, scale)

    @property
    def entropy_goal(self) -> float:
        """-1 per dimension, as for SAC."""
        return -1.0

    @property
    def most_entropy(self) -> float:
        """No bound: the scaled form widens with the temperature."""
        return math.inf

    @property
    def action_dtype(self) -> np.dtype:
        return np.dtype(np.float32)

    def decode(self, action: jax.Array) -> jax.Array:
        """Stored action -> agent coordinates: inside the bounds."""
        return jnp.clip(action, -1.0, 1.0)

    def encode(self, coordinates: jax.Array) -> jax.Array:
        """Agent coordinates -> stored action: the same."""
        return coordinates
