"""Algorithm 1 of the paper, for any loss on an implicit Q-value: Q(s, a) = temperature * ln pi(a|s) + V(s).

"Replacing the IQ loss by its residual version gives PCL" (App. B.2): iq.py and pcl.py hold the losses, this file all
the rest. Shapes: B batch, n steps of a return, O observation features, D action dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from implicitq import equations, policies
from implicitq.algorithms.base import Metrics, global_norm
from implicitq.configs import ImplicitConfig, Weights
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
    """Slowly following copies of the networks; None where the loss needs no such copy."""

    policy: Policy | None
    value: StateValue | None


class ImplicitState(NamedTuple):
    online: Networks
    target: Targets
    optimizer: optax.OptState


class LossResult(NamedTuple):
    """What every implicit loss gives."""

    error: jax.Array
    metrics: Metrics
    online: Networks  # the same parameters, with the batch's statistics noted


def weights_of(online: Networks, config: ImplicitConfig) -> Weights:
    """The config's, or, if the temperature is learnt, what it is now; no gradient flows into it."""
    if online.log_temperature is None:
        return config.weights
    temperature = jnp.exp(jax.lax.stop_gradient(online.log_temperature))
    if config.kl is not None:
        return Weights(temperature, jnp.minimum(config.kl / temperature, 1.0))
    if config.entropy is not None:
        return Weights(temperature, jnp.maximum(1.0 - config.entropy / temperature, 0.0))
    assert config.alpha is not None
    return Weights(temperature, config.alpha)


def predict(
    distribution: Distribution, value: jax.Array, action: jax.Array, weights: Weights, key: jax.Array
) -> tuple[jax.Array, Metrics]:
    """Q(s, a) at the batch's actions by Eq. 1, [B], and the metrics of the prediction."""
    q = equations.implicit_q(distribution.log_prob(action), value, weights.temperature)
    metrics = {
        "value": jnp.mean(value),
        "q": jnp.mean(q),
        "entropy_per_dimension": jnp.mean(distribution.entropy(key)),
    }
    return q, metrics


def needs_later_steps(config: ImplicitConfig) -> bool:
    """Whether `later_terms` evaluates the policy at all steps of an n-step return."""
    return config.n_step > 1 and config.n_step_target == "path"


def later_terms(
    policy: Policy, target_policy: Policy | None, batch: Transition[jax.Array], weights: Weights, config: ImplicitConfig
) -> jax.Array | float:
    """What n-step rewards lack of a regularised return, for steps i = 1 to n - 1: [B].

    path: sum_i gamma^i (alpha T ln pi_target_i - T ln pi_i), which is consistent for any actions.
    soft: its expectation if every step is on policy and has the wanted entropy H, (1 - alpha) T H sum_i gamma^i.
    """
    if batch.later_steps is not None:
        steps = batch.later_steps
        observation = steps.observation.reshape(-1, steps.observation.shape[-1])  # [B (n - 1), O]
        action = steps.action.reshape(-1, steps.action.shape[-1])
        terms = -weights.temperature * policy(observation, weights.temperature).log_prob(action)
        if target_policy is not None:
            log_pi = target_policy(observation, weights.temperature).log_prob(action)
            terms += equations.munchausen_bonus(log_pi, weights.alpha, weights.temperature, config.munchausen_clip)
        return jnp.sum(steps.weight * terms.reshape(steps.weight.shape), axis=1)
    if config.n_step_target == "soft" and batch.later_weight is not None:
        entropy = entropy_goal(policy, config) * batch.action.shape[-1]
        return (1 - weights.alpha) * weights.temperature * entropy * batch.later_weight
    return 0.0


def entropy_goal(policy: Policy, config: ImplicitConfig) -> float:
    """Nats per action dimension that a learnt temperature holds."""
    return policy.entropy_goal if config.entropy_target is None else config.entropy_target


def temperature_loss(log_temperature: jax.Array, entropy: jax.Array, entropy_target: float) -> jax.Array:
    """ln T (entropy - target): T rises where the policy is less random than wanted, and falls where it is more."""
    return log_temperature * jax.lax.stop_gradient(entropy - entropy_target)


@dataclass(frozen=True)
class ImplicitAlgorithm:
    """Learns policy and value jointly, with Adam on one loss, and acts by the policy."""

    config: Any  # the ImplicitConfig that both functions take
    spec: Spec
    loss: Callable[[Networks, Targets, Transition[jax.Array], Any, jax.Array], LossResult]
    targets: Callable[[Networks, Any], Targets]  # which networks have a slowly following copy

    @property
    def needs_later_steps(self) -> bool:
        return needs_later_steps(self.config)

    def init(self, key: jax.Array) -> ImplicitState:
        policy_key, value_key = jax.random.split(key)
        config = self.config
        policy = policies.build(config, self.spec, policy_key)
        wanted, most = config.entropy_target, policy.most_entropy
        reachable = wanted is None or wanted < most
        require(config, "entropy_target", reachable, f"below the entropy of uniform actions, {most:.3f} nats")
        online: PyTree = Networks(
            policy,
            StateValue(self.spec.observation_size, config.hidden, value_key, config.batch_norm),
            jnp.log(jnp.float32(config.initial_temperature)) if config.temperature == "auto" else None,
        )
        target = jax.tree.map(jnp.copy, self.targets(online, config))
        return ImplicitState(online, target, self._optimizer().init(online))

    def update(
        self, state: ImplicitState, batch: Transition[jax.Array], key: jax.Array
    ) -> tuple[ImplicitState, Metrics]:
        """One step of Adam on the loss, then the Polyak step of the targets."""
        gradient, (metrics, online) = jax.grad(self._objective, has_aux=True)(state.online, state.target, batch, key)
        step, optimizer = self._optimizer().update(gradient, state.optimizer)
        online = self._bounded(eqx.apply_updates(online, step))
        target = equations.polyak(state.target, self.targets(online, self.config), self.config.target_update)
        metrics |= {"td_error": jnp.sqrt(metrics["loss"]), "gradient_norm": global_norm(gradient)}
        return ImplicitState(online, target, optimizer), metrics

    def actor(self, state: ImplicitState) -> Networks:
        return state.online

    def sample(self, actor: Networks, observation: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._stored(actor.policy, actor.policy(observation, self._temperature(actor)).sample(key))

    def encode(self, actor: Networks, coordinates: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._stored(actor.policy, actor.policy.encode(coordinates))

    def deterministic(self, actor: Networks, observation: jax.Array) -> jax.Array:
        return actor.policy(observation, self._temperature(actor)).deterministic()

    def value(self, actor: Networks, observation: jax.Array) -> jax.Array:
        return actor.value(observation)

    def regularization(self, actor: Networks, observation: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """-(1 - alpha) T ln pi(a|s), as Eq. 2 solved for V(s) has it; at later steps, what `later_terms` adds."""
        weights = weights_of(actor, self.config)
        log_pi = actor.policy(observation, weights.temperature).log_prob(action)
        bonus = equations.munchausen_bonus(log_pi, weights.alpha, weights.temperature, self.config.munchausen_clip)
        first = bonus - weights.temperature * log_pi
        match self.config.n_step_target:
            case "path":
                return first, first
            case "soft":
                entropy = entropy_goal(actor.policy, self.config) * action.shape[-1]
                return first, jnp.full_like(first, (1 - weights.alpha) * weights.temperature * entropy)
            case _:
                return first, jnp.zeros_like(first)

    def log_prob(self, actor: Networks, observation: jax.Array, coordinates: jax.Array) -> jax.Array:
        policy = actor.policy
        return policy(observation, self._temperature(actor)).log_prob(policy.encode(coordinates))

    def q_value(self, actor: Networks, observation: jax.Array, coordinates: jax.Array) -> jax.Array:
        """Eq. 1. With alpha > 0, Q - V is the soft advantage divided by (1 - alpha)."""
        return equations.implicit_q(
            self.log_prob(actor, observation, coordinates), actor.value(observation), self._temperature(actor)
        )

    def _objective(
        self, online: Networks, target: Targets, batch: Transition[jax.Array], key: jax.Array
    ) -> tuple[jax.Array, tuple[Metrics, Networks]]:
        """The loss, and beside it that of the temperature, which shares no parameter with it."""
        error, metrics, noted = self.loss(online, target, batch, self.config, key)
        metrics = {"loss": error, **metrics}
        if online.log_temperature is None:
            return error, (metrics, noted)
        goal = entropy_goal(online.policy, self.config)
        apart = temperature_loss(online.log_temperature, metrics["entropy_per_dimension"], goal)
        return error + apart, (metrics | {"temperature": jnp.exp(online.log_temperature)}, noted)

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
        return weights_of(actor, self.config).temperature

    def _optimizer(self) -> optax.GradientTransformation:
        adam = optax.adam(self.config.learning_rate, b1=self.config.adam_b1)
        if self.config.temperature != "auto" or self.config.temperature_learning_rate is None:
            return adam
        # Adam's steps are proportional to the learning rate, so another one for ln T is a factor on its step.
        faster = self.config.temperature_learning_rate / self.config.learning_rate

        def hasten(step: PyTree, _: PyTree) -> PyTree:
            return step._replace(log_temperature=faster * step.log_temperature)

        return optax.chain(adam, optax.stateless(hasten))
