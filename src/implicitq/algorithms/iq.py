"""Implicit Q-values, IQ (alpha = 0) and M-IQ (alpha > 0): Algorithm 1 with the loss of Eq. 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from implicitq import equations
from implicitq.algorithms.base import Metrics
from implicitq.configs import IQConfig
from implicitq.networks import StateValue
from implicitq.policies import MulticategoricalPolicy
from implicitq.types import PyTree, Spec, Transition


class Networks(NamedTuple):
    """pi_theta and V_phi."""

    policy: MulticategoricalPolicy
    value: StateValue


class Targets(NamedTuple):
    """Slow copies of the networks. With alpha = 0 the target policy drops out of Eq. 2 and is not kept."""

    policy: MulticategoricalPolicy | None
    value: StateValue


class IQState(NamedTuple):
    online: Networks
    target: Targets
    optimizer: optax.OptState


def loss(
    online: Networks, target: Targets, batch: Transition[jax.Array], config: IQConfig
) -> tuple[jax.Array, Metrics]:
    """Eq. 2: mean of (r + alpha T ln pi_target(a|s) + gamma V_target(s') - T ln pi(a|s) - V(s))^2."""
    observation, action, reward, discount, next_observation = batch
    bonus = 0.0
    if target.policy is not None:
        target_log_pi = target.policy(observation, config.temperature).log_prob(action)
        bonus = equations.munchausen_bonus(target_log_pi, config.alpha, config.temperature, config.munchausen_clip)
    goal = equations.target(reward, bonus, discount, target.value(next_observation))

    distribution = online.policy(observation, config.temperature)
    value = online.value(observation)
    q = equations.implicit_q(distribution.log_prob(action), value, config.temperature)
    error = equations.squared_loss(q, jax.lax.stop_gradient(goal))
    metrics = {
        "loss": error,
        "value": jnp.mean(value),
        "q": jnp.mean(q),
        "entropy_per_dimension": jnp.mean(distribution.entropy()),
    }
    return error, metrics


@dataclass(frozen=True)
class IQ:
    config: IQConfig
    spec: Spec

    def init(self, key: jax.Array) -> IQState:
        policy_key, value_key = jax.random.split(key)
        config = self.config
        online: PyTree = Networks(
            MulticategoricalPolicy(self.spec, config.hidden, config.bins, config.softmax == "scaled", policy_key),
            StateValue(self.spec.observation_size, config.hidden, value_key),
        )
        target = jax.tree.map(jnp.copy, self._targeted(online))
        return IQState(online, target, self._optimizer().init(online))

    def update(self, state: IQState, batch: Transition[jax.Array], key: jax.Array) -> tuple[IQState, Metrics]:
        """One step of Adam on Eq. 2, then the Polyak step of the targets."""
        gradient, metrics = jax.grad(loss, has_aux=True)(state.online, state.target, batch, self.config)
        step, optimizer = self._optimizer().update(gradient, state.optimizer)
        online = eqx.apply_updates(state.online, step)
        target = equations.polyak(state.target, self._targeted(online), self.config.target_update)
        return IQState(online, target, optimizer), metrics

    def actor(self, state: IQState) -> Networks:
        return state.online

    def sample(self, actor: Networks, observation: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        policy = actor.policy
        action = policy(observation, self.config.temperature).sample(key)
        return action.astype(policy.action_dtype), policy.decode(action)

    def deterministic(self, actor: Networks, observation: jax.Array) -> jax.Array:
        policy = actor.policy
        return policy.deterministic(policy(observation, self.config.temperature))

    def value(self, actor: Networks, observation: jax.Array) -> jax.Array:
        return actor.value(observation)

    def log_prob(self, actor: Networks, observation: jax.Array, coordinates: jax.Array) -> jax.Array:
        policy = actor.policy
        return policy(observation, self.config.temperature).log_prob(policy.encode(coordinates))

    def q_value(self, actor: Networks, observation: jax.Array, coordinates: jax.Array) -> jax.Array:
        """Eq. 1. For M-IQ, Q - V is the soft advantage divided by (1 - alpha)."""
        return equations.implicit_q(
            self.log_prob(actor, observation, coordinates), actor.value(observation), self.config.temperature
        )

    def _targeted(self, online: Networks) -> Targets:
        """The part of the networks that has a slow copy."""
        return Targets(online.policy if self.config.alpha > 0 else None, online.value)

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.config.learning_rate)
