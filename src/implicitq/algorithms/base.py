"""What the training loop needs of an algorithm, and nothing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from implicitq.configs import Config
from implicitq.types import PyTree, Transition

if TYPE_CHECKING:
    import optax

Metrics = dict[str, jax.Array]


def global_norm(tree: PyTree) -> jax.Array:
    """Root of the sum of squares of all arrays."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))


def adam(config: Config, rate: float | None = None, b1: float = 0.9) -> optax.GradientTransformation:
    """Adam at `rate`, by default `learning_rate`; it falls as 1 / sqrt(1 + updates / learning_rate_decay)."""
    import optax  # here, so that a policy can be loaded and act without it

    first, decay = config.learning_rate if rate is None else rate, config.learning_rate_decay
    if decay is None:
        return optax.adam(first, b1=b1)
    return optax.adam(lambda updates: first / jnp.sqrt(1 + updates / decay), b1=b1)


class Seen(NamedTuple):
    """What finished episodes show of the values of their states."""

    overestimation: float  # mean of V(s) less the return that followed, in standard deviations of these returns
    lowest: float  # discounted return of rewards, less one standard deviation
    highest: float  # discounted return of rewards, plus one standard deviation
    updates: int = 0  # of the networks so far


Calibrate = Callable[[Any, Seen], Any]
"""The state, and what finished episodes show of its values -> the new state."""


class Algorithm(Protocol):
    """Pure functions over explicit state; the learner compiles them.

    `state` holds all that training needs. `actor` is the part of it that acts and is shipped, and what a policy file
    holds. Stored actions are what the replay keeps ([B, D]); coordinates are what they mean: numbers in [-1, 1] for
    continuous actions, category numbers for discrete ones.

    Where the environment gives action masks, those of a batch are in it, and all that acts or answers is called with
    the mask of its observations, [B, D, N], as one more argument. Algorithms for discrete actions take it.
    """

    @property
    def needs_later_steps(self) -> bool:
        """Whether `update` needs observations and actions of all steps of an n-step return, not only their rewards."""
        ...

    @property
    def needs_visited(self) -> bool:
        """Whether `update` needs states of the latest steps beside the batch."""
        ...

    @property
    def batch_parts(self) -> int:
        """Equal parts of a batch, each drawn from transitions of its own; 1 for a plain batch."""
        ...

    @property
    def calibrate(self) -> Calibrate | None:
        """How the state adapts to finished episodes; None if it does not."""
        ...

    def fresh_actor(self, key: jax.Array) -> PyTree:
        """Untrained networks, as `actor` gives them; needs no optimiser."""
        ...

    def init(self, key: jax.Array) -> PyTree: ...

    def start(self, actor: PyTree) -> PyTree:
        """The state of a training that begins with these networks, as `actor` gives them."""
        ...

    def update(self, state: PyTree, batch: Transition[jax.Array], key: jax.Array) -> tuple[PyTree, Metrics]: ...

    def actor(self, state: PyTree) -> PyTree:
        """Picks the actor out of the state, and does no more: it is also called with numbers in place of arrays."""
        ...

    def sample(self, actor: PyTree, observation: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A stored action and its coordinates."""
        ...

    def explore(self, actor: PyTree, observation: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """As `sample`, with exploration: for collecting data."""
        ...

    def encode(self, actor: PyTree, coordinates: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The stored action nearest to any coordinates, and its own coordinates."""
        ...

    def deterministic(self, actor: PyTree, observation: jax.Array) -> jax.Array:
        """Coordinates of the action to take when not exploring."""
        ...

    def value(self, actor: PyTree, observation: jax.Array) -> jax.Array: ...

    def regularization(self, actor: PyTree, observation: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Regularisation that `value` adds to the reward of these stored actions: two arrays [B].

        The first is for step 0 of an n-step target, the second for its later steps; with n = 1 every step is a step 0.
        """
        ...

    def log_prob(self, actor: PyTree, observation: jax.Array, coordinates: jax.Array) -> jax.Array: ...

    def q_value(self, actor: PyTree, observation: jax.Array, coordinates: jax.Array) -> jax.Array: ...
