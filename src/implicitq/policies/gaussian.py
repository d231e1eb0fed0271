"""The diagonal normal distribution, and the Gaussian policy of the paper's ablation (Sec. 6): that normal, truncated.

Shapes: B batch, O observation features, D action dimensions.

The policy lives in the coordinates where the environment's bounds are -1 and 1, and has no mass beyond them. An
untruncated normal would: what is drawn there has to be clipped for the environment, so Q is flat where ln pi falls
with the square of the distance, and fitting one to the other drives means and values apart without end. Inside, ln pi
of a replayed action is a quadratic function of it (which is NAF's advantage), finite and smooth up to the bounds.
ln pi is the logarithm of a density, which may be positive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from implicitq.configs import ImplicitConfig
from implicitq.networks import Network, network_for
from implicitq.policies.base import DensityPolicy
from implicitq.types import Spec

# With the least scale, ln pi is about -800 at worst, at the far bound; with the greatest, pi is nearly uniform.
_LEAST_SCALE, _GREATEST_SCALE = 0.05, 2.0


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


class TruncatedGaussian(eqx.Module):
    """Independent normal distributions within [-1, 1], one per action dimension. Their means lie there too."""

    mean: jax.Array  # [B, D], of the normal before it is truncated
    scale: jax.Array  # [B, D], its standard deviation

    def log_prob(self, action: jax.Array) -> jax.Array:
        """ln pi(a|s) of the normal, less ln of its mass between the bounds: [B, D] -> [B]."""
        return Gaussian(self.mean, self.scale).log_prob(action) - jnp.sum(self._log_mass(), axis=-1)

    def sample(self, key: jax.Array) -> jax.Array:
        drawn = jax.random.truncated_normal(key, *self._bounds())
        return jnp.clip(self.mean + self.scale * drawn, -1.0, 1.0)  # [B, D]; the last digit could be beyond

    def entropy(self, key: jax.Array) -> jax.Array:
        """Exact differential entropy of every dimension, in nats: [B, D]."""
        lower, upper = self._bounds()
        edges = (lower * norm.pdf(lower) - upper * norm.pdf(upper)) / (2 * jnp.exp(self._log_mass()))
        return jnp.log(self.scale) + 0.5 * math.log(2 * math.pi * math.e) + self._log_mass() + edges

    def deterministic(self) -> jax.Array:
        """The expected action (App. B.2): [B, D]."""
        lower, upper = self._bounds()
        return self.mean + self.scale * (norm.pdf(lower) - norm.pdf(upper)) / jnp.exp(self._log_mass())

    def pool(self, others: Sequence[TruncatedGaussian]) -> tuple[TruncatedGaussian, jax.Array]:
        """Precisions are averaged, and means with them as weights; ln Z from completing the square."""
        each = (self, *others)
        mean = jnp.stack([distribution.mean for distribution in each])  # [M, B, D]
        precision = jnp.stack([distribution.scale for distribution in each]) ** -2
        log_mass = jnp.stack([distribution._log_mass() for distribution in each])
        common = jnp.mean(precision, axis=0)
        centre = jnp.mean(precision * mean, axis=0) / common
        pooled = TruncatedGaussian(centre, common**-0.5)
        spread = jnp.mean(precision * jnp.square(mean - centre[None]), axis=0)
        log_z = 0.5 * (jnp.mean(jnp.log(precision), axis=0) - jnp.log(common) - spread)
        return pooled, jnp.sum(log_z + pooled._log_mass() - jnp.mean(log_mass, axis=0), axis=-1)

    def _bounds(self) -> tuple[jax.Array, jax.Array]:
        """Bounds of the actions, in units of the scale from the mean: never above and never below zero."""
        return (-1.0 - self.mean) / self.scale, (1.0 - self.mean) / self.scale

    def _log_mass(self) -> jax.Array:
        """ln of the normal's mass between the bounds: [B, D]. At least ln of about 0.4: the mean is inside."""
        lower, upper = self._bounds()
        return jnp.log(norm.cdf(upper) - norm.cdf(lower))


def build(config: ImplicitConfig, spec: Spec, key: jax.Array) -> GaussianPolicy:
    return GaussianPolicy(spec, config.hidden, key, scaled=config.softmax == "scaled", batch_norm=config.batch_norm)


class GaussianPolicy(DensityPolicy):
    """One network for mean and scale: the mean by tanh within the bounds, the scale by a sigmoid from 0.05 to 2.

    The scaled form multiplies the scale by the root of the temperature.
    """

    network: Network
    scaled: bool = eqx.field(static=True)

    def __init__(
        self, spec: Spec, hidden: Sequence[int], key: jax.Array, *, scaled: bool = False, batch_norm: bool = False
    ) -> None:
        self.scaled = scaled
        self.network = network_for(spec, hidden, 2 * spec.action_dimensions, key, batch_norm)

    def distribution(self, outputs: jax.Array, temperature: jax.Array | float) -> TruncatedGaussian:
        """In the scaled form, T ln pi is -(a - mean)^2 / (2 scale^2) plus a constant, with the scale before scaling.

        So it is in units of reward, as with scaled logits.
        """
        mean, raw = jnp.split(outputs, 2, axis=-1)
        scale = _LEAST_SCALE + (_GREATEST_SCALE - _LEAST_SCALE) * jax.nn.sigmoid(raw)
        if self.scaled:
            scale = jnp.maximum(scale * jnp.sqrt(temperature), _LEAST_SCALE)
        return TruncatedGaussian(jnp.tanh(mean), scale)
