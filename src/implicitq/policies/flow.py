"""A normalising flow on the action bounds: an exact density of any shape, in any number of dimensions together.

An action in [-1, 1]^D is mapped to a uniform one by invertible steps, and ln pi(a|s) is the logarithm of how much these
stretch space there, less D ln 2 of the uniform density. First, couplings move one half of the dimensions by splines
that depend on the other half; then every dimension is moved by itself. All splines are monotone rational quadratic ones
(Durkan et al. 2019, "Neural Spline Flows"), with parameters that depend on the state; both directions have closed
forms. Sec. 4 of the paper names flows as future work; MEow (Chao et al. 2024) is the nearest relative.

T ln pi is to be a Q-value: at a temperature of 0.01 actions differ by a hundred nats and more, and which is the better
one changes while values are learnt. So the pieces of a spline are those of a fixed grid, and what is learnt is how much
of the density is in each, in logarithms: an action that is all but impossible can still be learnt to be a good one, as
with bins. Couplings bend space by a bounded factor, so that what is sharp stays in one dimension, where it can be
undone exactly.

Shapes: B batch, D action dimensions, K pieces of a spline, L couplings, U hidden units.
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

_PIECES, _COUPLINGS, _UNITS = 16, 2, 64  # K, L, U
_BEND = 2.0  # bound on the parameters of couplings: slopes differ by a factor of exp(4) at most
_STEEPEST = 30.0  # ln of a slope at a knot against the mean of a piece beside it; exp of it can still be squared
_CANDIDATES = 32  # of which the deterministic action is the most likely


class Spline(NamedTuple):
    """A monotone map of [-1, 1] onto itself, in K pieces of equal width."""

    y: jax.Array  # [B, D, K + 1]: where the knots are mapped to
    log_mean: jax.Array  # [B, D, K]: ln of the mean slope in a piece
    log_slope: jax.Array  # [B, D, K + 1]: ln of the slope at a knot

    @staticmethod
    def of(shares: jax.Array) -> Spline:
        """[B, D, K]: the softmax of it is what every piece has of the height; with all of them equal, the identity."""
        log_height = jax.nn.log_softmax(shares)
        log_mean = log_height + math.log(_PIECES)
        inner = 2 * jnp.cumsum(jnp.exp(log_height), axis=-1)[..., :-1] - 1
        edge = jnp.ones((*shares.shape[:-1], 1))
        beyond = jnp.concatenate([log_mean[..., :1], log_mean, log_mean[..., -1:]], axis=-1)
        log_slope = (beyond[..., :-1] + beyond[..., 1:]) / 2  # the geometric mean of both sides
        return Spline(jnp.concatenate([-edge, inner, edge], axis=-1), log_mean, log_slope)

    def forward(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """y(x) and ln y'(x): [B, D] each.

        With p the part of the piece that is left of x, h its height, f and l the slopes at its first and last end over
        its mean slope m, and b = 1 + (f + l - 2) p (1 - p):
        y = y_first + h (p^2 + f p (1 - p)) / b and y' = m (l p^2 + 2 p (1 - p) + f (1 - p)^2) / b^2.
        """
        number = jnp.clip(jnp.floor((x + 1) * (_PIECES / 2)), 0, _PIECES - 1).astype(jnp.int32)
        piece = self._piece(number)
        part = jnp.clip((x - piece.x) * (_PIECES / 2), 0.0, 1.0)
        both = part * (1 - part)
        below = 1 + (piece.first + piece.last - 2) * both
        y = piece.y + piece.height * (part**2 + piece.first * both) / below
        rise = piece.last * part**2 + 2 * both + piece.first * (1 - part) ** 2
        return y, piece.log_mean + jnp.log(rise) - 2 * jnp.log(below)

    def inverse(self, y: jax.Array) -> jax.Array:
        """x(y): [B, D]. The equation of `forward` is quadratic in p: (1 - c) p^2 + c p = r, with r the share of the
        height below y and c = f - r (f + l - 2).
        """
        piece = self._piece(jnp.sum(y[..., None] >= self.y[..., 1:-1], axis=-1))
        risen = jnp.clip((y - piece.y) / jnp.maximum(piece.height, jnp.finfo(y.dtype).tiny), 0.0, 1.0)
        c = piece.first - risen * (piece.first + piece.last - 2)
        root = jnp.sqrt(jnp.maximum(c**2 + 4 * (1 - c) * risen, 0.0))
        return piece.x + 2 / _PIECES * jnp.clip(2 * risen / (c + root), 0.0, 1.0)

    def _piece(self, number: jax.Array) -> Piece:
        def at(table: jax.Array, shift: int = 0) -> jax.Array:
            return jnp.take_along_axis(table, number[..., None] + shift, axis=-1)[..., 0]

        def steepness(shift: int) -> jax.Array:
            return jnp.exp(jnp.clip(at(self.log_slope, shift) - log_mean, -_STEEPEST, _STEEPEST))

        log_mean, y = at(self.log_mean), at(self.y)
        return Piece(2 / _PIECES * number - 1, y, at(self.y, 1) - y, log_mean, steepness(0), steepness(1))


class Piece(NamedTuple):
    """The one that an action is in: [B, D] each."""

    x: jax.Array  # its left end
    y: jax.Array
    height: jax.Array
    log_mean: jax.Array
    first: jax.Array  # slope at its left end, in units of the mean
    last: jax.Array


class Flow(eqx.Module):
    """A density on [-1, 1]^D."""

    alone: jax.Array  # [B, D, K]: of the splines that depend on the state only
    seen: jax.Array  # [B, L, U]: what the couplings see of the state
    links: jax.Array  # [L, D, U]: and of the dimensions that they do not move
    heads: jax.Array  # [L, U, D K]
    biases: jax.Array  # [L, D K]

    def log_prob(self, action: jax.Array) -> jax.Array:
        """ln pi(a|s): [B, D] -> [B]."""
        moved, total = action, -action.shape[-1] * math.log(2)
        for layer in range(self.links.shape[0]):
            moves = self._moves(layer)
            there, log_slope = self._coupling(layer, moved).forward(moved)
            moved = jnp.where(moves[None], there, moved)
            total = total + jnp.sum(jnp.where(moves[None], log_slope, 0.0), axis=-1)
        _, log_slope = Spline.of(self.alone).forward(moved)
        return total + jnp.sum(log_slope, axis=-1)

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
        moved = Spline.of(self.alone).inverse(moved)
        for layer in reversed(range(self.links.shape[0])):
            there = self._coupling(layer, moved).inverse(moved)
            moved = jnp.where(self._moves(layer)[None], there, moved)
        return moved

    def _coupling(self, layer: int, action: jax.Array) -> Spline:
        """Splines of all dimensions; only those that move are used, and they see only the others."""
        others = jnp.where(self._moves(layer)[None], 0.0, action)
        hidden = jax.nn.relu(self.seen[:, layer] + others @ self.links[layer])
        shares = hidden @ self.heads[layer] + self.biases[layer][None]
        return Spline.of(_BEND * jnp.tanh(shares / _BEND).reshape(self.alone.shape))

    def _moves(self, layer: int) -> np.ndarray:
        """Every second dimension, the others in the next coupling: [D]."""
        return (np.arange(self.alone.shape[1]) + layer) % 2 == 1


def build(config: ImplicitConfig, spec: Spec, key: jax.Array) -> FlowPolicy:
    return FlowPolicy(config, spec, key)


class FlowPolicy(DensityPolicy):
    """One network for what the splines and the couplings see of the state."""

    network: Network
    links: jax.Array  # [L, D, U]
    heads: jax.Array  # [L, U, D K]
    biases: jax.Array  # [L, D K]
    dimensions: int = eqx.field(static=True)

    def __init__(self, config: ImplicitConfig, spec: Spec, key: jax.Array) -> None:
        self.dimensions = spec.action_dimensions
        layers = _COUPLINGS if self.dimensions > 1 else 0
        network_key, links_key = jax.random.split(key)
        outputs = self.dimensions * _PIECES + layers * _UNITS
        self.network = network_for(spec, config.hidden, outputs, network_key, config.batch_norm)
        limit = math.sqrt(3 / self.dimensions)
        self.links = jax.random.uniform(links_key, (layers, self.dimensions, _UNITS), minval=-limit, maxval=limit)
        self.heads = jnp.zeros((layers, _UNITS, self.dimensions * _PIECES))  # couplings begin as the identity
        self.biases = jnp.zeros((layers, self.dimensions * _PIECES))

    def distribution(self, outputs: jax.Array, temperature: jax.Array | float) -> Flow:
        alone, seen = jnp.split(outputs, [self.dimensions * _PIECES], axis=-1)
        rows = outputs.shape[0]
        return Flow(
            alone.reshape(rows, self.dimensions, _PIECES),
            seen.reshape(rows, self.links.shape[0], _UNITS),
            self.links,
            self.heads,
            self.biases,
        )
