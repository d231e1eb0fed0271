"""Algorithm 1 of the paper, for any loss on an implicit Q-value: Q(s, a) = temperature * ln pi(a|s) + V(s).

"Replacing the IQ loss by its residual version gives PCL" (App. B.2): iq.py and pcl.py hold the losses, this file all
the rest. Shapes: B batch, n steps of a path, O observation features, D action dimensions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from implicitq import equations, policies
from implicitq.algorithms.base import Metrics
from implicitq.configs import ImplicitConfig
from implicitq.networks import StateValue
from implicitq.policies import Distribution, Policy
from implicitq.types import PyTree, Spec, Transition
from implicitq.validation import require


class Networks(NamedTuple):
    """pi_theta and V_phi, and ln T where the temperature is learnt."""

    policy: Policy
    value: StateValue
    log_temperature: jax.Array | None = None


class Targets(NamedTuple):
    """Slow copies of the networks that a loss needs them of; None for the others."""

    policy: Policy | None
    value: StateValue | None


class ImplicitState(NamedTuple):
    online: Networks
    target: Targets
    optimizer: optax.OptState


class Dials(NamedTuple):
    """How strongly to regularise: the KL weight is alpha * temperature, the entropy weight the rest of it."""

    temperature: jax.Array | float
    alpha: jax.Array | float
    clip: float | None


Outcome = tuple[jax.Array, tuple[Metrics, Networks]]
"""A loss, what there is to say about it, and the networks with the batch's statistics noted (parameters unchanged)."""


def dials_of(online: Networks, config: ImplicitConfig) -> Dials:
    """The config's, or, if the temperature is learnt, what it is now; no gradient flows into it."""
    if online.log_temperature is None:
        assert config.temperature != "auto"
        return Dials(config.temperature, config.alpha, config.munchausen_clip)
    temperature = jnp.exp(jax.lax.stop_gradient(online.log_temperature))
    alpha = config.alpha
    if config.kl is not None:
        alpha = jnp.minimum(config.kl / temperature, 1.0)
    elif config.entropy is not None:
        alpha = jnp.maximum(1.0 - config.entropy / temperature, 0.0)
    return Dials(temperature, alpha, config.munchausen_clip)


def kl_bonus(
    target_policy: Policy | None, observation: jax.Array, action: jax.Array, dials: Dials
) -> jax.Array | float:
    """alpha T ln pi_target(a|s): [B]."""
    if target_policy is None:
        return 0.0
    log_pi = target_policy(observation, dials.temperature).log_prob(action)
    return equations.munchausen_bonus(log_pi, dials.alpha, dials.temperature, dials.clip)


def terms_between(
    policy: Policy, target_policy: Policy | None, batch: Transition[jax.Array], dials: Dials, config: ImplicitConfig
) -> jax.Array | float:
    """What n-step rewards lack of a regularised return: [B].

    path: sum_{i >= 1} gamma^i (alpha T ln pi_target_i - T ln pi_i), which is consistent for any path.
    soft: its expectation if every step is on policy and has the wanted entropy H, (1 - alpha) T H sum_{i >= 1} gamma^i.
    """
    if batch.between is not None:
        steps = batch.between
        observation = steps.observation.reshape(-1, steps.observation.shape[-1])  # [B (n - 1), O]
        action = steps.action.reshape(-1, steps.action.shape[-1])
        log_pi = policy(observation, dials.temperature).log_prob(action)
        terms = kl_bonus(target_policy, observation, action, dials) - dials.temperature * log_pi
        return jnp.sum(steps.weight * terms.reshape(steps.weight.shape), axis=1)
    if config.n_step_target == "soft" and batch.later is not None:
        entropy = entropy_goal(policy, config) * batch.action.shape[-1]
        return (1 - dials.alpha) * dials.temperature * entropy * batch.later
    return 0.0


def entropy_goal(policy: Policy, config: ImplicitConfig) -> float:
    """Nats per action dimension that a learnt temperature holds."""
    return policy.entropy_goal if config.entropy_target is None else config.entropy_target


def predict(distribution: Distribution, value: jax.Array, action: jax.Array, dials: Dials) -> tuple[jax.Array, Metrics]:
    """Eq. 1 at the batch's actions, [B], and what there is to say about it."""
    q = equations.implicit_q(distribution.log_prob(action), value, dials.temperature)
    metrics = {
        "value": jnp.mean(value),
        "q": jnp.mean(q),
        "entropy_per_dimension": jnp.mean(distribution.entropy()),
    }
    return q, metrics


def temperature_loss(log_temperature: jax.Array, entropy: jax.Array, entropy_target: float) -> jax.Array:
    """ln T (entropy - target): T rises where the policy is less random than wanted, and falls where it is more."""
    return log_temperature * jax.lax.stop_gradient(entropy - entropy_target)


@dataclass(frozen=True)
class ImplicitAlgorithm(ABC):
    """Learns policy and value jointly, with Adam on one loss, and acts by the policy."""

    config: ImplicitConfig
    spec: Spec
    batch_norm: ClassVar[bool] = False  # in both networks

    @abstractmethod
    def loss(self, online: Networks, target: Targets, batch: Transition[jax.Array]) -> Outcome: ...

    @abstractmethod
    def targets(self, online: Networks) -> Targets:
        """The networks that have a slow copy."""

    @property
    def wants_path(self) -> bool:
        return self.config.n_step > 1 and self.config.n_step_target == "path"

    def init(self, key: jax.Array) -> ImplicitState:
        policy_key, value_key = jax.random.split(key)
        policy = policies.build(self.config, self.spec, policy_key, self.batch_norm)
        wanted, most = self.config.entropy_target, policy.most_entropy
        reachable = wanted is None or wanted < most
        require(self.config, "entropy_target", reachable, f"below the entropy of uniform actions, {most:.3f} nats")
        online: PyTree = Networks(
            policy,
            StateValue(self.spec.observation_size, self.config.hidden, value_key, self.batch_norm),
            jnp.log(jnp.float32(self.config.initial_temperature)) if self.config.temperature == "auto" else None,
        )
        target = jax.tree.map(jnp.copy, self.targets(online))
        return ImplicitState(online, target, self._optimizer().init(online))

    def update(
        self, state: ImplicitState, batch: Transition[jax.Array], key: jax.Array
    ) -> tuple[ImplicitState, Metrics]:
        """One step of Adam on the loss, then the Polyak step of the targets."""
        gradient, (metrics, online) = jax.grad(self._objective, has_aux=True)(state.online, state.target, batch)
        step, optimizer = self._optimizer().update(gradient, state.optimizer)
        online = self._bounded(eqx.apply_updates(online, step))
        target = equations.polyak(state.target, self.targets(online), self.config.target_update)
        return ImplicitState(online, target, optimizer), metrics

    def actor(self, state: ImplicitState) -> Networks:
        return state.online

    def sample(self, actor: Networks, observation: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._stored(actor.policy, actor.policy(observation, self._temperature(actor)).sample(key))

    def encode(self, actor: Networks, coordinates: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._stored(actor.policy, actor.policy.encode(coordinates))

    def deterministic(self, actor: Networks, observation: jax.Array) -> jax.Array:
        policy = actor.policy
        return policy.deterministic(policy(observation, self._temperature(actor)))

    def value(self, actor: Networks, observation: jax.Array) -> jax.Array:
        return actor.value(observation)

    def log_prob(self, actor: Networks, observation: jax.Array, coordinates: jax.Array) -> jax.Array:
        policy = actor.policy
        return policy(observation, self._temperature(actor)).log_prob(policy.encode(coordinates))

    def q_value(self, actor: Networks, observation: jax.Array, coordinates: jax.Array) -> jax.Array:
        """Eq. 1. With alpha > 0, Q - V is the soft advantage divided by (1 - alpha)."""
        return equations.implicit_q(
            self.log_prob(actor, observation, coordinates), actor.value(observation), self._temperature(actor)
        )

    def _objective(self, online: Networks, target: Targets, batch: Transition[jax.Array]) -> Outcome:
        """The loss, and beside it that of the temperature, which shares no parameter with it."""
        error, (metrics, seen) = self.loss(online, target, batch)
        if online.log_temperature is None:
            return error, (metrics, seen)
        goal = entropy_goal(online.policy, self.config)
        apart = temperature_loss(online.log_temperature, metrics["entropy_per_dimension"], goal)
        return error + apart, (metrics | {"temperature": jnp.exp(online.log_temperature)}, seen)

    def _bounded(self, online: Networks) -> Networks:
        """T at most `max_temperature`, so that it cannot run away from the rewards.

        A rise of T moves all targets, by (1 - alpha) H T / (1 - gamma); where V cannot follow, the policy leaves the
        replayed actions, its entropy falls, and T rises further, until rewards no longer matter beside it.
        """
        if online.log_temperature is None or self.config.max_temperature is None:
            return online
        most = math.log(self.config.max_temperature)
        return online._replace(log_temperature=jnp.minimum(online.log_temperature, most))

    def _stored(self, policy: Policy, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        return action.astype(policy.action_dtype), policy.decode(action)

    def _temperature(self, actor: Networks) -> jax.Array | float:
        return dials_of(actor, self.config).temperature

    def _optimizer(self) -> optax.GradientTransformation:
        adam = optax.adam(self.config.learning_rate, b1=self.config.adam_b1)
        if self.config.temperature != "auto" or self.config.temperature_learning_rate is None:
            return adam
        # Adam's steps are proportional to the learning rate, so another one for ln T is a factor on its step.
        faster = self.config.temperature_learning_rate / self.config.learning_rate

        def hasten(step: PyTree, _: PyTree) -> PyTree:
            return step._replace(log_temperature=faster * step.log_temperature)

        return optax.chain(adam, optax.stateless(hasten))
