"""The multicategorical policy of Sec. 4: pi(a|s) = prod_j softmax(F_j(.|s))(a_j).

Shapes: B batch, O observation features, D action dimensions, N categories (the most over all dimensions).

Actions are stored as category numbers. A `Box` dimension is cut into N equal bins; the categories of `Discrete` and
`MultiDiscrete` are the actions themselves, and dimensions with fewer than N of them have the rest masked out.

In the paper the network gives one logit F per bin, so what is learnt of a bin says nothing of its neighbours. Instead
it can give the coefficients c_k of cosines over the bins, the slow ones strongest (`cosine_basis`): any F can still be
reached, and neighbouring bins learn together.
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
from implicitq.networks import Network, network_for
from implicitq.policies.base import ChoicePolicy, bin_centres
from implicitq.types import Array, Spec


class Multicategorical(eqx.Module):
    """Independent categorical distributions, one per action dimension."""

    logits: jax.Array  # [B, D, N]; -inf where a dimension has fewer categories, or an action is forbidden
    log_width: float = eqx.field(static=True, default=0.0)  # ln of a bin's width, for a density; 0 for probabilities
    continuous: bool = eqx.field(static=True, default=False)  # the categories are bins of [-1, 1]

    def log_prob(self, action: jax.Array) -> jax.Array:
        """ln pi(a|s) = sum_j (F_j(a_j) - ln sum exp F_j - ln width): [B, D] -> [B]."""
        chosen = action[..., None] == jnp.arange(self.logits.shape[-1])[None, None]  # [B, D, N]
        picked = jnp.sum(_normalised(self.logits)[0], axis=(-2, -1), where=chosen)
        return picked - self.log_width * self.logits.shape[-2]

    def allowing(self, mask: jax.Array) -> Multicategorical:
        return dataclasses.replace(self, logits=jnp.where(mask, self.logits, -jnp.inf))

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.random.categorical(key, self.logits)  # [B, D]

    def probabilities(self) -> jax.Array:
        return jax.nn.softmax(self.logits)  # [B, D, N]

    def entropy(self, key: jax.Array) -> jax.Array:
        """Exact entropy of every dimension, in nats: [B, D]."""
        log_pi, _ = _normalised(self.logits)
        finite = jnp.where(jnp.isneginf(log_pi), 0.0, log_pi)  # 0 ln 0 = 0, and its gradient too
        return self.log_width - jnp.sum(jnp.exp(log_pi) * finite, axis=-1)

    def pool(self, others: Sequence[Multicategorical]) -> tuple[Multicategorical, jax.Array]:
        """The mean of ln pi_i, normalised: ln Z = sum_j ln sum_n exp mean_i ln pi_ij(n)."""
        each = [_normalised(distribution.logits)[0] for distribution in (self, *others)]
        mean = sum(each[1:], each[0]) / len(each)  # [B, D, N]
        log_z = jnp.sum(_normalised(mean)[1], axis=-1)
        return Multicategorical(mean, self.log_width, self.continuous), log_z

    def deterministic(self) -> jax.Array:
        """Expected bin centre (App. B.2) for continuous actions, the mode for discrete ones: [B, D]."""
        if self.continuous:
            centres = jnp.asarray(bin_centres(self.logits.shape[-1]))
            return jnp.sum(self.probabilities() * centres[None, None], axis=-1)
        return jnp.argmax(self.logits, axis=-1)


def _normalised(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """F - ln sum exp F, and ln sum exp F: [B, D, N] -> [B, D, N], [B, D].

    All callers share this function, so that the compiler sees that they need the same, and computes it once.
    """
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    shifted = logits - top
    log_sum = jnp.log(jnp.sum(jnp.exp(shifted), axis=-1, keepdims=True))
    return shifted - log_sum, (log_sum + top)[..., 0]


def build(config: ImplicitConfig, spec: Spec, key: jax.Array) -> MulticategoricalPolicy:
    return MulticategoricalPolicy(
        spec,
        config.hidden,
        config.bins,
        key,
        cosines=config.logits == "cosines",
        scaled=config.softmax == "scaled",
        density=config.log_policy == "density",
        batch_norm=config.batch_norm,
    )


def cosine_basis(bins: int) -> Array:
    """F(n) = sum_k c_k sqrt(2) / k cos(pi k (n + 1/2) / N) for k = 1 to N - 1: [N - 1, N].

    k = 0, a constant, has no effect in a softmax. Adam moves all c_k by similar steps, so F moves mostly in its smooth
    parts.
    """
    k, n = np.arange(1, bins)[:, None], np.arange(bins)[None]
    return (math.sqrt(2) / k * np.cos(np.pi * k * (n + 0.5) / bins)).astype(np.float32)


class MulticategoricalPolicy(ChoicePolicy):
    """A shared core with one head per action dimension."""

    network: Network
    cosines: bool = eqx.field(static=True)  # the network gives coefficients of `cosine_basis`; bins of [-1, 1] only

    def __init__(
        self,
        spec: Spec,
        hidden: Sequence[int],
        bins: int,
        key: jax.Array,
        *,
        cosines: bool = False,
        scaled: bool = False,
        density: bool = False,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(spec, bins, scaled, density)
        self.cosines = cosines and spec.continuous
        self.network = network_for(spec, hidden, self._outputs, key, batch_norm)

    @property
    def _outputs(self) -> int:
        return len(self.categories) * (max(self.categories) - self.cosines)

    def distribution(self, outputs: jax.Array, temperature: jax.Array | float) -> Multicategorical:
        """softmax(F), or softmax(F / temperature) in the scaled form of Sec. 3.3, where F is in units of reward."""
        logits = outputs.reshape(outputs.shape[0], len(self.categories), -1)  # F: [B, D, N]
        if self.cosines:
            logits = logits @ cosine_basis(max(self.categories))
        if self.scaled:
            logits = logits / temperature
        if self.exists is not None:
            logits = jnp.where(self.exists[None], logits, -jnp.inf)
        return Multicategorical(logits, self.log_width, self.continuous)

    def rescaled(self, factor: jax.Array) -> MulticategoricalPolicy:
        """The policy with F times `factor`; other outputs of the network stay as they are."""
        factors = jnp.where(jnp.arange(self.network.outputs) < self._outputs, factor, 1.0)
        return eqx.tree_at(lambda policy: policy.network, self, self.network.rescaled(factors))
