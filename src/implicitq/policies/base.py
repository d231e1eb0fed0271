"""What an implicit Q-value needs of a policy class: ln pi of any stored action, exactly.

A new class is one file with `build(config, spec, key)` and a line in `configs.POLICIES`.
Shapes: B batch, O observation features, D action dimensions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

import equinox as eqx
import jax
import numpy as np

from implicitq.networks import MLP
from implicitq.types import InputError


class Distribution(Protocol):
    """pi(.|s) for a batch of states."""

    def log_prob(self, action: jax.Array) -> jax.Array:
        """ln pi(a|s) of stored actions: [B, D] -> [B]."""
        ...

    def sample(self, key: jax.Array) -> jax.Array:
        """Stored actions: [B, D]."""
        ...

    def entropy(self, key: jax.Array) -> jax.Array:
        """Nats of every action dimension: [B, D]; or [B, 1], their mean, where they are not known one by one.

        `key` is for classes without a closed form, which estimate it from samples.
        """
        ...

    def deterministic(self) -> jax.Array:
        """Agent coordinates of the action to take when not exploring: [B, D]."""
        ...


class FactoredDistribution(Distribution, Protocol):
    """A distribution whose geometric means are in closed form, as ensembles need them."""

    def pool(self, others: Sequence[Self]) -> tuple[Self, jax.Array]:
        """pi_bar = prod_i pi_i^(1/M) / Z over this one and the others, and ln Z: [B]."""
        ...


@runtime_checkable
class Maskable(Protocol):
    """A distribution over choices, some of which can be forbidden."""

    def allowing(self, mask: jax.Array) -> Distribution:
        """The same with probability 0 for what `mask` [B, D, N] forbids, and the rest in proportion."""
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
    """A network that gives a distribution, and the meaning of its actions."""

    def __call__(self, observation: jax.Array, temperature: jax.Array | float) -> Distribution:
        """pi(.|s) for acting, and for targets: [B, O]."""
        ...

    def train(self, observation: jax.Array, temperature: jax.Array | float) -> tuple[Distribution, Self]:
        """pi(.|s) as the loss sees it, and the policy with the statistics of the batch noted, if it keeps any."""
        ...

    @property
    def entropy_goal(self) -> float:
        """Nats per action dimension that a learnt temperature holds by default."""
        ...

    @property
    def most_entropy(self) -> float:
        """Nats per action dimension that no policy of the class exceeds."""
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
    """A policy whose distribution is a function of what one fully connected network gives."""

    network: eqx.AbstractVar[MLP]

    @abstractmethod
    def distribution(self, outputs: jax.Array, temperature: jax.Array | float) -> Distribution: ...

    def __call__(self, observation: jax.Array, temperature: jax.Array | float) -> Distribution:
        return self.distribution(self.network(observation), temperature)

    def train(self, observation: jax.Array, temperature: jax.Array | float) -> tuple[Distribution, Self]:
        outputs, _, network = self.network.train(observation, observation[:0])
        noted = eqx.tree_at(lambda policy: policy.network, self, network)
        return self.distribution(outputs, temperature), noted
