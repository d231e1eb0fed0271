"""M-DQN and DQN: an explicit Q-network for one choice among N actions (App. A.5).

IQ on a `Discrete` space minimises the loss of this file on Q = T ln pi + V. At temperature 0 the soft maximum is the
maximum and the softmax is greedy: with alpha = 0 that is DQN, with alpha > 0 advantage learning.
Shapes: B batch, O observation features, N actions. Stored actions are [B, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from implicitq import equations
from implicitq.algorithms.base import Metrics, adam, global_norm
from implicitq.configs import DQNConfig
from implicitq.networks import Network, network_for
from implicitq.types import PyTree, Spec, Transition

if TYPE_CHECKING:
    import optax

_TINY = 1e-30  # 0 ln 0 = 0


class DQNState(NamedTuple):
    online: Network  # s -> Q(s, .)
    target: Network
    optimizer: optax.OptState


def chosen(rows: jax.Array, action: jax.Array) -> jax.Array:
    """The entry of every row that its action picks: [B, N], [B, 1] -> [B]."""
    return jnp.take_along_axis(rows, action.astype(jnp.int32), axis=1)[:, 0]


def restricted(q: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Q(s, .) with minus infinity for actions that are forbidden: [B, N], [B, 1, N] -> [B, N]."""
    return q if mask is None else jnp.where(mask[:, 0], q, -jnp.inf)


def munchausen_loss(
    q: jax.Array, target_q: jax.Array, next_target_q: jax.Array, batch: Transition[jax.Array], config: DQNConfig
) -> jax.Array:
    """Mean of (r + alpha T ln pi_(a|s) + gamma sum_b pi_(b|s') (Q_(s', b) - T ln pi_(b|s')) - Q(s, a))^2, _ for target.

    With pi_target = softmax(Q_target / T) the sum is the soft maximum of Q_target(s', .), and T ln pi_target is
    Q_target minus its soft maximum. All three Q are [B, N]; over what s and s' allow, if not all is allowed.
    """
    target_q, next_target_q = restricted(target_q, batch.mask), restricted(next_target_q, batch.next_mask)
    log_policy = target_q - equations.soft_maximum(target_q, config.temperature)[:, None]  # T ln pi_target: [B, N]
    bonus = equations.munchausen_bonus(chosen(log_policy, batch.action), config.alpha, 1.0, config.munchausen_clip)
    next_value = equations.soft_maximum(next_target_q, config.temperature)
    goal = equations.target(batch.reward, bonus, batch.discount, next_value)
    return equations.squared_loss(chosen(q, batch.action), jax.lax.stop_gradient(goal))


def loss(
    online: Network, target: Network, batch: Transition[jax.Array], config: DQNConfig
) -> tuple[jax.Array, Metrics]:
    """`munchausen_loss` of the two networks."""
    q = online(batch.observation)
    error = munchausen_loss(q, target(batch.observation), target(batch.next_observation), batch, config)
    metrics = {
        "loss": error,
        "value": jnp.mean(equations.soft_maximum(restricted(q, batch.mask), config.temperature)),
        "q": jnp.mean(chosen(q, batch.action)),
    }
    if config.temperature > 0:
        policy = jax.nn.softmax(restricted(q, batch.mask) / config.temperature)
        metrics["entropy_per_dimension"] = -jnp.mean(jnp.sum(policy * jnp.log(policy + _TINY), axis=1))
    return error, metrics


@dataclass(frozen=True)
class DQN:
    config: DQNConfig
    spec: Spec
    batch_parts: int = 1
    calibrate: None = None
    needs_later_steps: bool = False
    needs_visited: bool = False

    @property
    def _actions(self) -> int:
        assert self.spec.categories is not None
        return self.spec.categories[0]

    def fresh_actor(self, key: jax.Array) -> PyTree:
        return network_for(self.spec, self.config.hidden, self._actions, key)

    def init(self, key: jax.Array) -> DQNState:
        return self.start(self.fresh_actor(key))

    def start(self, actor: PyTree) -> DQNState:
        return DQNState(actor, jax.tree.map(jnp.copy, actor), adam(self.config).init(actor))

    def update(self, state: DQNState, batch: Transition[jax.Array], key: jax.Array) -> tuple[DQNState, Metrics]:
        """One step of Adam on the loss, then the Polyak step of the target."""
        gradient, metrics = jax.grad(loss, has_aux=True)(state.online, state.target, batch, self.config)
        step, optimizer = adam(self.config).update(gradient, state.optimizer)
        online = eqx.apply_updates(state.online, step)
        target = equations.polyak(state.target, online, self.config.target_update)
        metrics |= {"td_error": jnp.sqrt(metrics["loss"]), "gradient_norm": global_norm(gradient)}
        return DQNState(online, target, optimizer), metrics

    def actor(self, state: DQNState) -> Network:
        return state.online

    def sample(
        self, actor: Network, observation: jax.Array, key: jax.Array, mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        return self.encode(actor, jax.random.categorical(key, self._log_policy(actor, observation, mask))[:, None])

    explore = sample

    def encode(self, actor: Network, coordinates: jax.Array) -> tuple[jax.Array, jax.Array]:
        return coordinates.astype(np.min_scalar_type(self._actions - 1)), coordinates

    def deterministic(self, actor: Network, observation: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return jnp.argmax(restricted(actor(observation), mask), axis=1)[:, None]

    def value(self, actor: Network, observation: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """The soft maximum of Q(s, .)."""
        return equations.soft_maximum(restricted(actor(observation), mask), self.config.temperature)

    def regularization(
        self, actor: Network, observation: jax.Array, action: jax.Array, mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """-(1 - alpha) T ln pi(a|s) of the softmax; zero at temperature 0, and for later steps of an n-step target."""
        q, temperature = restricted(actor(observation), mask), self.config.temperature
        scaled = chosen(q, action) - equations.soft_maximum(q, temperature)  # T ln pi(a|s)
        bonus = equations.munchausen_bonus(scaled, self.config.alpha, 1.0, self.config.munchausen_clip)
        none = jnp.zeros_like(scaled)
        return (bonus - scaled if temperature > 0 else none), none

    def log_prob(
        self, actor: Network, observation: jax.Array, coordinates: jax.Array, mask: jax.Array | None = None
    ) -> jax.Array:
        """ln pi of the policy that `sample` draws from; minus infinity for actions that it never takes."""
        return chosen(self._log_policy(actor, observation, mask), coordinates)

    def q_value(
        self, actor: Network, observation: jax.Array, coordinates: jax.Array, mask: jax.Array | None = None
    ) -> jax.Array:
        return chosen(restricted(actor(observation), mask), coordinates)

    def _log_policy(self, actor: Network, observation: jax.Array, mask: jax.Array | None) -> jax.Array:
        """ln((1 - epsilon) softmax(Q / T) + epsilon / N), N that of allowed actions; at T = 0 greedy: [B, N]."""
        temperature, epsilon = self.config.temperature, self.config.epsilon
        q = restricted(actor(observation), mask)
        if temperature > 0 and epsilon == 0:
            return jax.nn.log_softmax(q / temperature)  # the logarithm of a softmax would be minus infinity too soon
        if temperature > 0:
            policy = jax.nn.softmax(q / temperature)
        else:
            policy = jax.nn.one_hot(jnp.argmax(q, axis=1), self._actions)
        if mask is None:
            return jnp.log((1 - epsilon) * policy + epsilon / self._actions)
        allowed = mask[:, 0]
        return jnp.log((1 - epsilon) * policy + epsilon * allowed / jnp.sum(allowed, axis=1, keepdims=True))
