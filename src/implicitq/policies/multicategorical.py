"""The multicategorical policy of Sec. 4: pi(a|s) = prod_j softmax(F_j(.|s))(a_j).

Shapes: B batch, O observation features, D action dimensions, N categories (the most over all dimensions).

Actions are stored as category numbers. A `Box` dimension is cut into N equal bins; the categories of `Discrete` and
`MultiDiscrete` are the actions themselves, and dimensions with fewer than N of them have the rest masked out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from implicitq.configs import ImplicitConfig
from implicitq.networks import MLP
from implicitq.policies.base import NetworkPolicy
from implicitq.types import Array, Spec


def bin_centres(bins: int) -> Array:
    """App. B.2 for the interval [-1, 1]: delta_j = delta_0 + 2 j / n with delta_0 = -1 + 1 / n. Gives [N]."""
    return (-1 + 1 / bins + 2 * np.arange(bins) / bins).astype(np.float32)


class Multicategorical(eqx.Module):
    """Independent categorical distributions, one per action dimension."""

    logits: jax.Array  # [B, D, N]; -inf where a dimension has fewer categories, or an action is forbidden
    log_width: float = eqx.field(static=True, default=0.0)  # ln of a bin's width, for a density; 0 for probabilities
    continuous: bool = eqx.field(static=True, default=False)  # the categories are bins of [-1, 1]

    def log_prob(self, action: jax.Array) -> jax.Array:
        """ln pi(a|s) = sum_j (F_j(a_j) - ln sum exp F_j - ln width): [B, D] -> [B]."""
        chosen = action[..., None] == jnp.arange(self.logits.shape[-1])[None, None]  # [B, D, N]
        picked = jnp.sum(self.logits, axis=-1, where=chosen)
        return jnp.sum(picked - jax.nn.logsumexp(self.logits, axis=-1) - self.log_width, axis=-1)

    def allowing(self, mask: jax.Array) -> Multicategorical:
        return dataclasses.replace(self, logits=jnp.where(mask, self.logits, -jnp.inf))

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.random.categorical(key, self.logits)  # [B, D]

    def probabilities(self) -> jax.Array:
        return jax.nn.softmax(self.logits)  # [B, D, N]

    def entropy(self, key: jax.Array) -> jax.Array:
        """Exact entropy of every dimension, in nats: [B, D]."""
        log_pi = jax.nn.log_softmax(self.logits)
        finite = jnp.where(jnp.isneginf(log_pi), 0.0, log_pi)  # 0 ln 0 = 0, and its gradient too
        return self.log_width - jnp.sum(jnp.exp(log_pi) * finite, axis=-1)

    def pool(self, others: Sequence[Multicategorical]) -> tuple[Multicategorical, jax.Array]:
        """The mean of ln pi_i, normalised: ln Z = sum_j ln sum_n exp mean_i ln pi_ij(n)."""
        each = jnp.stack([jax.nn.log_softmax(distribution.logits) for distribution in (self, *others)])
        mean = jnp.mean(each, axis=0)  # [B, D, N]
        log_z = jnp.sum(jax.nn.logsumexp(mean, axis=-1), axis=-1)
        return Multicategorical(mean, self.log_width, self.continuous), log_z

    def deterministic(self) -> jax.Array:
        """Expected bin centre (App. B.2) for continuous actions, the mode for discrete ones: [B, D]."""
        if self.continuous:
            centres = jnp.asarray(bin_centres(self.logits.shape[-1]))
            return jnp.sum(self.probabilities() * centres[None, None], axis=-1)
        return jnp.argmax(self.logits, axis=-1)


def build(config: ImplicitConfig, spec: Spec, key: jax.Array) -> MulticategoricalPolicy:
    return MulticategoricalPolicy(
        spec,
        config.hidden,
        config.bins,
        key,
        scaled=config.softmax == "scaled",
        density=config.log_policy == "density",
        batch_norm=config.batch_norm,
    )


class MulticategoricalPolicy(NetworkPolicy):
    """A shared core with one head per action dimension."""

    network: MLP
    categories: tuple[int, ...] = eqx.field(static=True)
    continuous: bool = eqx.field(static=True)
    scaled: bool = eqx.field(static=True)
    density: bool = eqx.field(static=True)

    def __init__(
        self,
        spec: Spec,
        hidden: Sequence[int],
        bins: int,
        key: jax.Array,
        *,
        scaled: bool = False,
        density: bool = False,
        batch_norm: bool = False,
    ) -> None:
        self.categories = spec.categories or (bins,) * spec.action_dimensions
        self.continuous = spec.continuous
        self.scaled = scaled
        self.density = density and spec.continuous
        outputs = len(self.categories) * max(self.categories)
        self.network = MLP((spec.observation_size, *hidden, outputs), key, batch_norm)

    def distribution(self, outputs: jax.Array, temperature: jax.Array | float) -> Multicategorical:
        """softmax(F), or softmax(F / temperature) in the scaled form of Sec. 3.3, where F is in units of reward."""
        logits = outputs.reshape(outputs.shape[0], len(self.categories), -1)  # F: [B, D, N]
        if self.scaled:
            logits = logits / temperature
        sizes = np.array(self.categories)
        if (sizes < sizes.max()).any():
            exists = np.arange(sizes.max())[None] < sizes[:, None]  # [D, N]
            logits = jnp.where(exists[None], logits, -jnp.inf)
        return Multicategorical(logits, self._log_width, self.continuous)

    @property
    def _log_width(self) -> float:
        """As a density, pi is constant over a bin of [-1, 1]: its entropy does not grow with the number of bins."""
        return math.log(2 / self.categories[0]) if self.density else 0.0

    @property
    def entropy_goal(self) -> float:
        """0.3 ln n_j, on average over the dimensions: 0.72 nats for 11 bins, which is -0.99 as a density."""
        return 0.3 * self._uniform + self._log_width

    @property
    def most_entropy(self) -> float:
        """That of uniform actions: ln n_j, on average over the dimensions; ln 2 as a density on [-1, 1]."""
        return self._uniform + self._log_width

    @property
    def _uniform(self) -> float:
        return float(np.mean(np.log(self.categories)))

    @property
    def action_dtype(self) -> np.dtype:
        return np.min_scalar_type(max(self.categories) - 1)

    def decode(self, action: jax.Array) -> jax.Array:
        """Stored action -> agent coordinates: centre of the bin in [-1, 1], or the category itself."""
        return jnp.asarray(bin_centres(self.categories[0]))[action] if self.continuous else action

    def encode(self, coordinates: jax.Array) -> jax.Array:
        """Agent coordinates -> the stored action whose bin is nearest."""
        if not self.continuous:
            return coordinates.astype(jnp.int32)
        bins = self.categories[0]
        return jnp.clip(jnp.floor((coordinates + 1) / 2 * bins), 0, bins - 1).astype(jnp.int32)
