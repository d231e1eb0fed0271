"""What an implicit Q-value needs of a policy class: ln pi of any stored action, exactly.

Shapes: B batch, O observation features, D action dimensions.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import numpy as np

from implicitq.networks import MLP


class Distribution(Protocol):
    """pi(.|s) for a batch of states."""

    def log_prob(self, action: jax.Array) -> jax.Array:
        """ln pi(a|s) of stored actions: [B, D] -> [B]."""
        ...

    def sample(self, key: jax.Array) -> jax.Array:
        """Stored actions: [B, D]."""
        ...

    def entropy(self) -> jax.Array:
        """Of every dimension, in nats: [B, D]."""
        ...


class Policy(Protocol):
    """The network behind the distribution, and the meaning of its actions."""

    def __call__(self, observation: jax.Array, temperature: jax.Array | float) -> Distribution: ...

    @property
    def network(self) -> MLP: ...

    def distribution(self, outputs: jax.Array, temperature: jax.Array | float) -> Distribution:
        """pi(.|s) from what the network gives."""
        ...

    @property
    def entropy_goal(self) -> float:
        """Nats per action dimension that an adaptive temperature holds by default."""
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

    def deterministic(self, distribution: Any) -> jax.Array:
        """Agent coordinates of the action to take when not exploring: [B, D]."""
        ...
