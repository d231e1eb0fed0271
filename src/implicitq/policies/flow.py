"""A normalising flow on the action bounds: an exact density of any shape, in any number of dimensions together.

An action in [-1, 1]^D is mapped to a uniform one by invertible steps, and ln pi(a|s) is the logarithm of how much these
stretch space there, less D ln 2 of the uniform density. The first step moves every dimension by itself; then couplings
move one half of the dimensions by splines that depend on the other half. All splines are monotone rational quadratic
ones (Durkan et al. 2019, "Neural Spline Flows"), with parameters that depend on the state; both directions have closed
forms. Sec. 4 of the paper names flows as future work; MEow (Chao et al. 2024) is the nearest relative.

Shapes: B batch, D action dimensions, K pieces of a spline, P = 3 K + 1 parameters of one, L couplings, U hidden units.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from implicitq.configs import ImplicitConfig
from implicitq.networks import Network, network_for
from implicitq.policies.base import DensityPolicy
from implicitq.types import Spec

_PIECES, _COUPLINGS, _UNITS = 8, 2, 64  # K, L, U
_PARAMETERS = 3 * _PIECES + 1
_LEAST = 1e-2  # share of a piece, and slope at a knot: nothing is stretched without bound
_CANDIDATES = 32  # of which the deterministic action is the most likely


class Spline(NamedTuple):
    """A monotone map of [-1, 1] onto itself, in K pieces."""

    x: jax.Array  # [B, D, K + 1]: knots
    y: jax.Array  # [B, D, K + 1]: where they are mapped to
    slope: jax.Array  # [B, D, K + 1]: at the knots

    @staticmethod
    def of(parameters: jax.Array) -> Spline:
        """[B, D, P]; with all of them 0, the identity."""
        widths, heights, slopes = jnp.split(parameters, [_PIECES, 2 * _PIECES], axis=-1)
        at_zero = math.log(math.expm1(1 - _LEAST))  # softplus of it is 1 - least
        return Spline(_knots(widths), _knots(heights), _LEAST + jax.nn.softplus(slopes + at_zero))

    def forward(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """y(x) and ln y'(x): [B, D] each."""
        left, right = self._piece(self.x, x)
        width, height = right.x - left.x, right.y - left.y
        mean = height / width
        part = jnp.clip((x - left.x) / width, 0.0, 1.0)
        both = part * (1 - part)
        below = mean + (left.slope + right.slope - 2 * mean) * both
        y = left.y + height * (mean * part**2 + left.slope * both) / below
        rise = right.slope * part**2 + 2 * mean * both + left.slope * (1 - part) ** 2
        return y, 2 * jnp.log(mean) + jnp.log(rise) - 2 * jnp.log(below)

    def inverse(self, y: jax.Array) -> jax.Array:
        """x(y): [B, D]. The piece's equation is quadratic in the part of it that lies to the left."""
        left, right = self._piece(self.y, y)
        width, height = right.x - left.x, right.y - left.y
        mean, rest = height / width, y - left.y
        bend = left.slope + right.slope - 2 * mean
        a = height * (mean - left.slope) + rest * bend
        b = height * left.slope - rest * bend
        c = -mean * rest
        root = jnp.sqrt(jnp.maximum(b**2 - 4 * a * c, 0.0))
        return left.x + width * jnp.clip(2 * c / (-b - root), 0.0, 1.0)

    def _piece(self, knots: jax.Array, at: jax.Array) -> tuple[Spline, Spline]:
        """Its left and its right end: [B, D] in place of [B, D, K + 1]."""
        inner = knots[..., 1:-1]
        number = jnp.sum(at[..., None] >= inner, axis=-1, keepdims=True)  # [B, D, 1]

        def end(shift: int) -> Spline:
            return Spline(*(jnp.take_along_axis(table, number + shift, axis=-1)[..., 0] for table in self))

        return end(0), end(1)


def _knots(shares: jax.Array) -> jax.Array:
    """From -1 to 1, with pieces in proportion to the softmax of `shares`: [B, D, K] -> [B, D, K + 1]."""
    pieces = _LEAST + (1 - _PIECES * _LEAST) * jax.nn.softmax(shares)
    ends = 2 * jnp.cumsum(pieces, axis=-1)[..., :-1] - 1
    edge = jnp.ones((*shares.shape[:-1], 1))
    return jnp.concatenate([-edge, ends, edge], axis=-1)


class Flow(eqx.Module):
    """A density on [-1, 1]^D."""

    alone: jax.Array  # [B, D, P]: of the splines that depend on the state only
    seen: jax.Array  # [B, L, U]: what the couplings see of the state
    links: jax.Array  # [L, D, U]: and of the dimensions that they do not move
    heads: jax.Array  # [L, U, D P]
    biases: jax.Array  # [L, D P]

    def log_prob(self, action: jax.Array) -> jax.Array:
        """ln pi(a|s): [B, D] -> [B]."""
        moved, log_slope = Spline.of(self.alone).forward(action)
        total = jnp.sum(log_slope, axis=-1)
        for layer in range(self.links.shape[0]):
            moves = self._moves(layer)
            there, log_slope = self._coupling(layer, moved).forward(moved)
            moved = jnp.where(moves[None], there, moved)
            total = total + jnp.sum(jnp.where(moves[None], log_slope, 0.0), axis=-1)
        return total - action.shape[-1] * math.log(2)

    def sample(self, key: jax.Array) -> jax.Array:
        return self._from_uniform(jax.random.uniform(key, self.alone.shape[:2], minval=-1.0, maxval=1.0))

    def entropy(self, key: jax.Array) -> jax.Array:
        """Estimated from one action of each state, the mean over dimensions: [B, 1]."""
        action = self.sample(key)
        return -self.log_prob(action)[:, None] / action.shape[-1]

    def deterministic(self) -> jax.Array:
        """The most likely of 32 actions, drawn with the same random numbers in every state: [B, D]."""
        shape = (_CANDIDATES, 1, self.alone.shape[1])
        uniform = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
        uniform[0] = 0.0  # the median, where there is one dimension

        def candidate(row: jax.Array) -> tuple[jax.Array, jax.Array]:
            action = self._from_uniform(jnp.broadcast_to(row, self.alone.shape[:2]))
            return action, self.log_prob(action)

        actions, log_pi = jax.vmap(candidate)(jnp.asarray(uniform))  # [candidates, B, D], [candidates, B]
        return jnp.take_along_axis(actions, jnp.argmax(log_pi, axis=0)[None, :, None], axis=0)[0]

    def _from_uniform(self, moved: jax.Array) -> jax.Array:
        """The steps of `log_prob` backwards: [B, D]."""
        for layer in reversed(range(self.links.shape[0])):
            there = self._coupling(layer, moved).inverse(moved)
            moved = jnp.where(self._moves(layer)[None], there, moved)
        return Spline.of(self.alone).inverse(moved)

    def _coupling(self, layer: int, action: jax.Array) -> Spline:
        """Spline parameters of all dimensions; only those that move are used, and they see only the others."""
        others = jnp.where(self._moves(layer)[None], 0.0, action)
        hidden = jax.nn.relu(self.seen[:, layer] + others @ self.links[layer])
        parameters = hidden @ self.heads[layer] + self.biases[layer][None]
        return Spline.of(parameters.reshape(self.alone.shape))

    def _moves(self, layer: int) -> np.ndarray:
        """Every second dimension, the others in the next coupling: [D]."""
        return (np.arange(self.alone.shape[1]) + layer) % 2 == 1


def build(config: ImplicitConfig, spec: Spec, key: jax.Array) -> FlowPolicy:
    return FlowPolicy(config, spec, key)


class FlowPolicy(DensityPolicy):
    """One network for what the splines and the couplings see of the state."""

    network: Network
    links: jax.Array  # [L, D, U]
    heads: jax.Array  # [L, U, D P]
    biases: jax.Array  # [L, D P]
    dimensions: int = eqx.field(static=True)

    def __init__(self, config: ImplicitConfig, spec: Spec, key: jax.Array) -> None:
        self.dimensions = spec.action_dimensions
        layers = _COUPLINGS if self.dimensions > 1 else 0
        network_key, links_key = jax.random.split(key)
        outputs = self.dimensions * _PARAMETERS + layers * _UNITS
        self.network = network_for(spec, config.hidden, outputs, network_key, config.batch_norm)
        limit = math.sqrt(3 / self.dimensions)
        self.links = jax.random.uniform(links_key, (layers, self.dimensions, _UNITS), minval=-limit, maxval=limit)
        self.heads = jnp.zeros((layers, _UNITS, self.dimensions * _PARAMETERS))  # couplings begin as the identity
        self.biases = jnp.zeros((layers, self.dimensions * _PARAMETERS))

    def distribution(self, outputs: jax.Array, temperature: jax.Array | float) -> Flow:
        alone, seen = jnp.split(outputs, [self.dimensions * _PARAMETERS], axis=-1)
        rows = outputs.shape[0]
        return Flow(
            alone.reshape(rows, self.dimensions, _PARAMETERS),
            seen.reshape(rows, self.links.shape[0], _UNITS),
            self.links,
            self.heads,
            self.biases,
        )
