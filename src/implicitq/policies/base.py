"""What an implicit Q-value needs of a policy class: ln pi of any stored action, exactly.

A new class is one file with `build(config, spec, key)` and a line in `configs.POLICIES`.
Shapes: B batch, O observation features, D action dimensions, N categories.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from implicitq.networks import Network
from implicitq.types import Array, InputError, Spec


class Distribution(Protocol):
    """pi(.|s) for a batch of states."""

    def log_prob(self, action: jax.Array) -> jax.Array:
        """ln pi(a|s) of stored actions: [B, D] -> [B]."""
        ...

    def sample(self, key: jax.Array) -> jax.Array:
        """Stored actions: [B, D]."""
        ...

    def entropy(self, key: jax.Array) -> jax.Array:
        """Nats per action dimension: [B, D]; or their mean, [B, 1], where only that is known.

        `key` is for classes without a closed form, which estimate it from samples.
        """
        ...

    def deterministic(self) -> jax.Array:
        """Agent coordinates of the action to take when not exploring: [B, D]."""
        ...


class FactoredDistribution(Distribution, Protocol):
    """A distribution whose geometric means have a closed form, which ensembles need.

    All its arrays have the batch first, since an ensemble puts parts of batches together: [B, ...].
    """

    def pool(self, others: Sequence[Self]) -> tuple[Self, jax.Array]:
        """pi_bar = prod_i pi_i^(1/M) / Z over this one and the others, and ln Z: [B]."""
        ...


@runtime_checkable
class Maskable(Protocol):
    """A distribution over choices, some of which can be forbidden."""

    def allowing(self, mask: jax.Array) -> Distribution:
        """The distribution given that the action is one that `mask` [B, D, N] allows."""
        ...


def restricted(distribution: Distribution, mask: jax.Array | None) -> Distribution:
    """pi(.|s) over the allowed actions; None allows all."""
    if mask is None:
        return distribution
    if not isinstance(distribution, Maskable):
        raise InputError(
            f"the environment gives action masks, but policies that are {type(distribution).__name__} know none"
        )
    return distribution.allowing(mask)


class Policy(Protocol):
    """A network that gives a distribution, and the meaning of its actions.

    Some have more, as their `PolicyEntry` tells: `nearby` of `ChoicePolicy`, `rescaled` of `MulticategoricalPolicy`.
    """

    def __call__(self, observation: jax.Array, temperature: jax.Array | float) -> Distribution:
        """pi(.|s) for acting, and for targets: [B, O]."""
        ...

    def train(self, observation: jax.Array, temperature: jax.Array | float) -> tuple[Distribution, Self]:
        """pi(.|s) as the loss sees it, and the policy with its running statistics, if any, updated by the batch."""
        ...

    @property
    def entropy_goal(self) -> float:
        """Default target entropy, in nats per action dimension."""
        ...

    @property
    def most_entropy(self) -> float:
        """Upper bound of the entropy, in nats per action dimension."""
        ...

    @property
    def action_dtype(self) -> np.dtype:
        """Type of stored actions in the replay."""
        ...

    def decode(self, action: jax.Array) -> jax.Array:
        """Stored action -> agent coordinates."""
        ...

    def encode(self, coordinates: jax.Array) -> jax.Array:
        """Agent coordinates -> stored action."""
        ...


class NetworkPolicy(eqx.Module):
    """A policy whose distribution is a function of the outputs of one network."""

    network: eqx.AbstractVar[Network]

    @abstractmethod
    def distribution(self, outputs: jax.Array, temperature: jax.Array | float) -> Distribution: ...

    def __call__(self, observation: jax.Array, temperature: jax.Array | float) -> Distribution:
        return self.distribution(self.network(observation), temperature)

    def train(self, observation: jax.Array, temperature: jax.Array | float) -> tuple[Distribution, Self]:
        outputs, _, network = self.network.train(observation, observation[:0])
        noted = eqx.tree_at(lambda policy: policy.network, self, network)
        return self.distribution(outputs, temperature), noted


class DensityPolicy(NetworkPolicy):
    """What is common to all policies whose ln pi is that of a density on [-1, 1]: actions are stored as they are."""

    @property
    def entropy_goal(self) -> float:
        """-1 per dimension, as for SAC."""
        return -1.0

    @property
    def most_entropy(self) -> float:
        """That of uniform actions between the bounds."""
        return math.log(2)

    @property
    def action_dtype(self) -> np.dtype:
        return np.dtype(np.float32)

    def decode(self, action: jax.Array) -> jax.Array:
        """Stored action -> agent coordinates: the same."""
        return action

    def encode(self, coordinates: jax.Array) -> jax.Array:
        """Agent coordinates -> stored action: the same."""
        return coordinates


def bin_centres(bins: int) -> Array:
    """App. B.2 for the interval [-1, 1]: delta_j = delta_0 + 2 j / n with delta_0 = -1 + 1 / n. Gives [N]."""
    return (-1 + 1 / bins + 2 * np.arange(bins) / bins).astype(np.float32)


class ChoicePolicy(NetworkPolicy):
    """What all policies share that choose one of N categories for every action dimension.

    A `Box` dimension is cut into N equal bins of [-1, 1].
    """

    categories: tuple[int, ...] = eqx.field(static=True)  # of every dimension
    continuous: bool = eqx.field(static=True)  # the categories are bins of [-1, 1]
    scaled: bool = eqx.field(static=True)  # softmax(F / temperature) instead of softmax(F)
    density: bool = eqx.field(static=True)  # ln pi is that of a density on [-1, 1]

    def __init__(self, spec: Spec, bins: int, scaled: bool, density: bool) -> None:
        self.categories = spec.categories or (bins,) * spec.action_dimensions
        self.continuous = spec.continuous
        self.scaled = scaled
        self.density = density and spec.continuous

    @property
    def exists(self) -> Array | None:
        """Which categories a dimension has, [D, N]; None if all have the same number."""
        sizes = np.array(self.categories)
        if (sizes == sizes.max()).all():
            return None
        return np.arange(sizes.max())[None] < sizes[:, None]

    @property
    def log_width(self) -> float:
        """ln of the width of a bin of [-1, 1], over which pi is constant as a density; 0 for probabilities."""
        return math.log(2 / self.categories[0]) if self.density else 0.0

    @property
    def entropy_goal(self) -> float:
        """0.3 ln n_j, averaged over dimensions: 0.72 nats for 11 bins, which is -0.99 as a density."""
        return 0.3 * self._uniform + self.log_width

    @property
    def most_entropy(self) -> float:
        """The entropy of uniform actions: ln n_j, averaged over dimensions; ln 2 as a density on [-1, 1]."""
        return self._uniform + self.log_width

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

    def nearby(self, action: jax.Array, key: jax.Array, share: float) -> jax.Array:
        """In every `Box` dimension, with probability `share`, move to the bin below or above, each equally likely."""
        if not self.continuous:
            return action
        moved = jax.random.uniform(key, action.shape, minval=-1.0, maxval=1.0)  # [B, D]
        step = jnp.where(jnp.abs(moved) < share, jnp.sign(moved), 0).astype(action.dtype)
        return jnp.clip(action + step, 0, self.categories[0] - 1)
