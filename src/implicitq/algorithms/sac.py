"""Soft actor-critic, the baseline (Sec. 6; Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications").

Shapes: B batch, D action dimensions. Actions are stored as drawn, in [-1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from implicitq import equations
from implicitq.algorithms.base import Metrics, adam, global_norm
from implicitq.configs import SACConfig
from implicitq.networks import TwinActionValue
from implicitq.policies.tanh_gaussian import TanhGaussianPolicy
from implicitq.types import PyTree, Spec, Transition

if TYPE_CHECKING:
    import optax

_VALUE_SAMPLES = 32


class Networks(NamedTuple):
    """pi, the two Q, and ln T, which is constant for a fixed temperature."""

    policy: TanhGaussianPolicy
    critics: TwinActionValue
    log_temperature: jax.Array


class Optimizers(NamedTuple):
    """The state of one Adam for each part of the networks."""

    policy: optax.OptState
    critics: optax.OptState
    log_temperature: optax.OptState


class SACState(NamedTuple):
    online: Networks
    target: TwinActionValue
    optimizers: Optimizers


def critic_loss(
    critics: TwinActionValue,
    target: TwinActionValue,
    policy: TanhGaussianPolicy,
    temperature: jax.Array,
    batch: Transition[jax.Array],
    key: jax.Array,
) -> tuple[jax.Array, Metrics]:
    """Mean over the batch, sum over i, of (r + gamma (min_j Q_target_j(s', a') - T ln pi(a'|s')) - Q_i(s, a))^2."""
    next_action, next_log_pi = policy(batch.next_observation).sample_and_log_prob(key)
    next_value = jnp.minimum(*target(batch.next_observation, next_action)) - temperature * next_log_pi
    goal = jax.lax.stop_gradient(equations.target(batch.reward, 0.0, batch.discount, next_value))
    first, second = critics(batch.observation, batch.action)
    error = equations.squared_loss(first, goal) + equations.squared_loss(second, goal)
    return error, {"loss": error, "q": jnp.mean(first)}


def policy_loss(
    policy: TanhGaussianPolicy,
    critics: TwinActionValue,
    temperature: jax.Array,
    observation: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Mean of T ln pi(a|s) - min_j Q_j(s, a), for a drawn from the policy.

    Also gives the entropy, -mean ln pi, and the mean soft value, which is minus the loss.
    """
    action, log_pi = policy(observation).sample_and_log_prob(key)
    q = jnp.minimum(*critics(observation, action))
    error = jnp.mean(temperature * log_pi - q)
    return error, (-jnp.mean(log_pi), -error)


def temperature_loss(log_temperature: jax.Array, entropy: jax.Array, entropy_target: float) -> jax.Array:
    """T (entropy - target): T rises where the policy is less random than wanted. Both are sums over dimensions."""
    return jnp.exp(log_temperature) * (entropy - entropy_target)


@dataclass(frozen=True)
class SAC:
    config: SACConfig
    spec: Spec
    batch_parts: int = 1
    calibrate: None = None
    needs_later_steps: bool = False
    needs_visited: bool = False

    def fresh_actor(self, key: jax.Array) -> Networks:
        policy_key, critic_key = jax.random.split(key)
        hidden, first = self.config.hidden, self.config.temperature
        return Networks(
            TanhGaussianPolicy(self.spec, hidden, policy_key),
            TwinActionValue(self.spec, hidden, critic_key),
            jnp.log(jnp.float32(1.0 if first == "auto" else first)),
        )

    def init(self, key: jax.Array) -> SACState:
        return self.start(self.fresh_actor(key))

    def start(self, actor: PyTree) -> SACState:
        optimizers = Optimizers(*(adam(self.config).init(part) for part in actor))
        return SACState(actor, jax.tree.map(jnp.copy, actor.critics), optimizers)

    def update(self, state: SACState, batch: Transition[jax.Array], key: jax.Array) -> tuple[SACState, Metrics]:
        """One step of Adam on the critics, on the policy against the new critics, and on the temperature."""
        critic_key, policy_key = jax.random.split(key)
        policy, critics, log_temperature = state.online
        temperature = jnp.exp(log_temperature)

        critic_gradient, metrics = jax.grad(critic_loss, has_aux=True)(
            critics, state.target, policy, temperature, batch, critic_key
        )
        rate, optimizers = self.config.learning_rate, state.optimizers
        critics, critic_optimizer = self._step(critics, critic_gradient, optimizers.critics, rate)

        policy_gradient, (entropy, value) = jax.grad(policy_loss, has_aux=True)(
            policy, critics, temperature, batch.observation, policy_key
        )
        policy, policy_optimizer = self._step(policy, policy_gradient, optimizers.policy, rate)

        temperature_optimizer = optimizers.log_temperature
        if self.config.temperature == "auto":
            gradient = jax.grad(temperature_loss)(log_temperature, entropy, self._entropy_target())
            own = self.config.temperature_learning_rate or rate
            log_temperature, temperature_optimizer = self._step(log_temperature, gradient, temperature_optimizer, own)

        target = equations.polyak(state.target, critics, self.config.target_update)
        online = Networks(policy, critics, log_temperature)
        optimizers = Optimizers(policy_optimizer, critic_optimizer, temperature_optimizer)
        metrics |= {
            "td_error": jnp.sqrt(metrics["loss"] / 2),  # of both critics together
            "value": value,
            "entropy_per_dimension": entropy / self.spec.action_dimensions,
            "temperature": temperature,
            "gradient_norm": global_norm((critic_gradient, policy_gradient)),
        }
        return SACState(online, target, optimizers), metrics

    def actor(self, state: SACState) -> Networks:
        return state.online

    def sample(self, actor: Networks, observation: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        action, _ = actor.policy(observation).sample_and_log_prob(key)
        return action, action

    explore = sample

    def encode(self, actor: Networks, coordinates: jax.Array) -> tuple[jax.Array, jax.Array]:
        return coordinates, coordinates

    def deterministic(self, actor: Networks, observation: jax.Array) -> jax.Array:
        """tanh of the normal's mean."""
        return actor.policy(observation).mode()

    def value(self, actor: Networks, observation: jax.Array) -> jax.Array:
        """The soft value, mean of min_j Q_j(s, a) - T ln pi(a|s) over 32 actions of the policy.

        The actions come from one fixed draw of random numbers, so equal observations have equal values.
        """

        def soft_value(row: jax.Array) -> jax.Array:
            rows = jnp.broadcast_to(row, (_VALUE_SAMPLES, *row.shape))
            action, log_pi = actor.policy(rows).sample_and_log_prob(jax.random.key(0))
            return jnp.mean(self.q_value(actor, rows, action) - jnp.exp(actor.log_temperature) * log_pi)

        return jax.vmap(soft_value)(observation)

    def regularization(self, actor: Networks, observation: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """-T ln pi(a|s); zero for later steps of an n-step target, which has rewards only."""
        first = -jnp.exp(actor.log_temperature) * self.log_prob(actor, observation, action)
        return first, jnp.zeros_like(first)

    def log_prob(self, actor: Networks, observation: jax.Array, coordinates: jax.Array) -> jax.Array:
        """ln of the density, in coordinates where the bounds are -1 and 1."""
        return actor.policy(observation).log_prob(coordinates)

    def q_value(self, actor: Networks, observation: jax.Array, coordinates: jax.Array) -> jax.Array:
        """The smaller of the two Q-values."""
        return jnp.minimum(*actor.critics(observation, coordinates))

    def _entropy_target(self) -> float:
        """The entropy target, summed over all action dimensions; by default -1 nat for each."""
        each = -1.0 if self.config.entropy_target is None else self.config.entropy_target
        return each * self.spec.action_dimensions

    def _step(
        self, network: PyTree, gradient: PyTree, optimizer: optax.OptState, rate: float
    ) -> tuple[PyTree, optax.OptState]:
        step, optimizer = adam(self.config, rate).update(gradient, optimizer)
        return eqx.apply_updates(network, step), optimizer
