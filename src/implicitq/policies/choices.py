"""Actions as numbers of categories: what is common to all policies that choose one of N for every action dimension.

A `Box` dimension is cut into N equal bins of [-1, 1]. Shapes: B batch, D action dimensions, N categories.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from implicitq.policies.base import NetworkPolicy
from implicitq.types import Array, Spec


def bin_centres(bins: int) -> Array:
    """App. B.2 for the interval [-1, 1]: delta_j = delta_0 + 2 j / n with delta_0 = -1 + 1 / n. Gives [N]."""
    return (-1 + 1 / bins + 2 * np.arange(bins) / bins).astype(np.float32)


class ChoicePolicy(NetworkPolicy):
    """The meaning of categories, and how random choices among them can be."""

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
        """As a density, pi is constant over a bin of [-1, 1]: its entropy does not grow with the number of bins."""
        return math.log(2 / self.categories[0]) if self.density else 0.0

    @property
    def entropy_goal(self) -> float:
        """0.3 ln n_j, on average over the dimensions: 0.72 nats for 11 bins, which is -0.99 as a density."""
        return 0.3 * self._uniform + self.log_width

    @property
    def most_entropy(self) -> float:
        """That of uniform actions: ln n_j, on average over the dimensions; ln 2 as a density on [-1, 1]."""
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
