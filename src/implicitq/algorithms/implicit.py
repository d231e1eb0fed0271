"""Algorithm 1 of the paper, for any loss on an implicit Q-value: Q(s, a) = temperature * ln pi(a|s) + V(s).

"Replacing the IQ loss by its residual version gives PCL" (App. B.2): iq.py and pcl.py hold the losses, this file all
the rest. Shapes: B batch, n steps of a return, O observation features, D action dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from implicitq import equations, policies
from implicitq.algorithms.base import Calibrate, Metrics, adam, global_norm
from implicitq.configs import ImplicitConfig, Weights
from implicitq.networks import StateValue
from implicitq.normalization import trained
from implicitq.policies import Distribution, Policy, restricted
from implicitq.types import PyTree, Spec, Transition
from implicitq.validation import require

if TYPE_CHECKING:
    import optax

_LEAST_TEMPERATURE = 1e-4  # where it is learnt, in units of the root mean square of TD errors


class Networks(NamedTuple):
    """pi_theta and V_phi, and ln T where the temperature is learnt."""

    policy: Policy
    value: StateValue
    log_temperature: jax.Array | None = None

    def act(self, observation: jax.Array, temperature: jax.Array | float) -> Distribution:
        """pi(.|s): [B, O]."""
        return self.policy(observation, temperature)

    def soft_value(
        self, observation: jax.Array, temperature: jax.Array | float, mask: jax.Array | None = None
    ) -> jax.Array:
        """V(s): [B, O] -> [B]. It has learnt which actions the state allows, so it needs no mask."""
        return self.value(observation)

    def begun(self) -> Networks:
        """These networks at the start of a new training, which knows nothing of the returns of another one."""
        return self

    def rescaled(self, factor: jax.Array) -> Networks:
        """The networks with the logits of the policy times `factor`."""
        policy: Any = self.policy
        return self._replace(policy=policy.rescaled(factor))


class Targets(NamedTuple):
    """Slowly following copies of the networks; None where the loss needs no such copy."""

    policy: Policy | None
    value: StateValue | None

    def rescaled(self, factor: jax.Array) -> Targets:
        policy: Any = self.policy
        return self if policy is None else self._replace(policy=policy.rescaled(factor))


class ImplicitState(NamedTuple):
    online: Networks
    target: Targets
    optimizer: optax.OptState


class LossResult(NamedTuple):
    """What every implicit loss gives."""

    error: jax.Array
    metrics: Metrics
    online: Any  # the same parameters, with running statistics that have taken in the batch


Act = Callable[[jax.Array, jax.Array | float], Distribution]
"""Observations and the temperature -> pi(.|s)."""


def weights_of(log_temperature: jax.Array | None, config: ImplicitConfig) -> Weights:
    """Temperature and alpha: those of the config, or the current ones if T is learnt, without gradients."""
    if log_temperature is None:
        return config.weights
    temperature = jnp.exp(jax.lax.stop_gradient(log_temperature))
    if config.kl is not None:
        return Weights(temperature, jnp.minimum(config.kl / temperature, 1.0))
    if config.entropy is not None:
        return Weights(temperature, jnp.maximum(1.0 - config.entropy / temperature, 0.0))
    assert config.alpha is not None
    return Weights(temperature, config.alpha)


def log_policy(
    distribution: Distribution,
    action: jax.Array,
    policy: Policy,
    config: ImplicitConfig,
    mask: jax.Array | None = None,
) -> jax.Array:
    """The ln pi(a|s) in Q-values: [B, D] -> [B]. The distribution is already restricted to what the mask allows.

    Centred, it is ln pi + H with the target entropy H: zero on average for a policy with that entropy. So a long
    episode is not worth more than a short one for its entropy alone.
    """
    log_pi = distribution.log_prob(action)
    if config.log_policy == "centred":
        log_pi = log_pi + entropy_goal(policy, config, mask) * action.shape[-1]
    return log_pi


def predict(
    distribution: Distribution, value: jax.Array, log_pi: jax.Array, weights: Weights, key: jax.Array
) -> tuple[jax.Array, Metrics]:
    """Q(s, a) at the batch's actions by Eq. 1, [B], and the metrics of the prediction."""
    q = equations.implicit_q(log_pi, value, weights.temperature)
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
    act: Act,
    target_act: Act | None,
    policy: Policy,
    batch: Transition[jax.Array],
    weights: Weights,
    config: ImplicitConfig,
) -> jax.Array | float:
    """Regularisation of steps i = 1 to n - 1, to be added to an n-step target of rewards: [B].

    plain: zero.
    path: sum_i gamma^i (alpha T ln pi_target_i - T ln pi_i), which is consistent for any actions.
    soft: its expectation if every step is on policy and has the target entropy H, (1 - alpha) T H sum_i gamma^i; zero
    if ln pi is centred.
    """
    if batch.later_steps is not None:
        steps = batch.later_steps
        observation = steps.observation.reshape(-1, steps.observation.shape[-1])  # [B (n - 1), O]
        action = steps.action.reshape(-1, steps.action.shape[-1])
        mask = None if steps.mask is None else steps.mask.reshape(-1, *steps.mask.shape[2:])
        now = restricted(act(observation, weights.temperature), mask)
        terms = -weights.temperature * log_policy(now, action, policy, config, mask)
        if target_act is not None:
            before = restricted(target_act(observation, weights.temperature), mask)
            log_pi = log_policy(before, action, policy, config, mask)
            terms += equations.munchausen_bonus(log_pi, weights.alpha, weights.temperature, config.munchausen_clip)
        return jnp.sum(steps.weight * terms.reshape(steps.weight.shape), axis=1)
    if batch.later_weight is None:
        return 0.0
    entropy = mean_entropy_goal(policy, config, batch.mask) * batch.action.shape[-1]
    return soft_terms(entropy, batch.later_weight, weights, config)


def soft_terms(entropy: Any, steps: Any, weights: Weights, config: ImplicitConfig) -> Any:
    """The terms `soft` of later steps that have this entropy; `steps` is the sum of their gamma^i."""
    if config.n_step_target != "soft" or config.log_policy == "centred":
        return 0.0
    return (1 - weights.alpha) * weights.temperature * entropy * steps


def entropy_goal(policy: Policy, config: ImplicitConfig, mask: jax.Array | None) -> Any:
    """Target entropy, in nats per action dimension.

    By default, with action masks, it is the same share of the entropy of uniform actions in every state, which is ln of
    the number of allowed choices: [B].
    """
    if config.entropy_target is not None:
        return config.entropy_target
    if mask is None or policy.most_entropy == 0:
        return policy.entropy_goal
    return policy.entropy_goal / policy.most_entropy * jnp.mean(jnp.log(jnp.sum(mask, axis=-1)), axis=-1)


def mean_entropy_goal(policy: Policy, config: ImplicitConfig, mask: jax.Array | None) -> Any:
    """`entropy_goal`, averaged over the states of the mask."""
    goal = entropy_goal(policy, config, mask)
    return jnp.mean(goal) if isinstance(goal, jax.Array) else goal


def temperature_loss(log_temperature: jax.Array, entropy: jax.Array, entropy_target: jax.Array | float) -> jax.Array:
    """ln T (entropy - target): T rises where the policy is less random than wanted, and falls where it is more."""
    return log_temperature * jax.lax.stop_gradient(entropy - entropy_target)


def first_log_temperature(config: ImplicitConfig) -> jax.Array | None:
    """Where a learnt temperature starts; None for a fixed one."""
    return jnp.log(jnp.float32(config.initial_temperature)) if config.temperature == "auto" else None


def separate_networks(config: ImplicitConfig, spec: Spec, key: jax.Array) -> Networks:
    """A network for the policy and one for the value, as in the paper."""
    policy_key, value_key = jax.random.split(key)
    value = StateValue(spec, config.hidden, value_key, config.batch_norm)
    return Networks(policies.build(config, spec, policy_key), value, first_log_temperature(config))


@dataclass(frozen=True)
class ImplicitAlgorithm:
    """Learns policy and value jointly, with Adam on one loss, and acts by the policy.

    Algorithms differ in what they give here: `loss`, `targets`, and perhaps `networks`, `batch_parts`, `calibrate`.
    """

    config: Any  # the ImplicitConfig that these functions take
    spec: Spec
    loss: Callable[[Any, Any, Transition[jax.Array], Any, jax.Array], LossResult]
    targets: Callable[[Any, Any], Any]  # which networks have a slowly following copy
    networks: Callable[[Any, Spec, jax.Array], Any] = separate_networks  # makes `Networks`, or what has its methods
    batch_parts: int = 1
    calibrate: Calibrate | None = None

    @property
    def needs_later_steps(self) -> bool:
        return needs_later_steps(self.config)

    @property
    def needs_visited(self) -> bool:
        return self.config.temperature == "auto" and self.config.entropy_states == "visited"

    def fresh_actor(self, key: jax.Array) -> Networks:
        online = self.networks(self.config, self.spec, key)
        wanted, most = self.config.entropy_target, online.policy.most_entropy
        reachable = wanted is None or wanted < most
        require(self.config, "entropy_target", reachable, f"below the entropy of uniform actions, {most:.3f} nats")
        return online

    def init(self, key: jax.Array) -> ImplicitState:
        return self.start(self.fresh_actor(key))

    def start(self, actor: Networks) -> ImplicitState:
        actor = actor.begun()
        target = jax.tree.map(jnp.copy, self.targets(actor, self.config))
        return ImplicitState(actor, target, self._optimizer().init(trained(actor)))

    def update(
        self, state: ImplicitState, batch: Transition[jax.Array], key: jax.Array
    ) -> tuple[ImplicitState, Metrics]:
        """One step of Adam on the loss, then the Polyak step of the targets."""
        gradient, (metrics, online) = jax.grad(self._objective, has_aux=True)(trained(state.online), state, batch, key)
        step, optimizer = self._optimizer().update(gradient, state.optimizer)
        metrics |= {"td_error": jnp.sqrt(metrics["loss"]), "gradient_norm": global_norm(gradient)}
        online = self._bounded(eqx.apply_updates(online, step), metrics["td_error"])
        online, target = self._steady(state.online, online, state.target)
        target = equations.polyak(target, self.targets(online, self.config), self.config.target_update)
        return ImplicitState(online, target, optimizer), metrics

    def actor(self, state: ImplicitState) -> Networks:
        return state.online

    def sample(
        self, actor: Networks, observation: jax.Array, key: jax.Array, mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        return self._stored(actor.policy, self._distribution(actor, observation, mask).sample(key))

    def explore(
        self, actor: Networks, observation: jax.Array, key: jax.Array, mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Moves some actions to a neighbouring bin: a nearly deterministic policy learns nothing of other actions."""
        if self.config.exploration == 0:
            return self.sample(actor, observation, key, mask)
        policy: Any = actor.policy
        sample_key, near_key = jax.random.split(key)
        action = self._distribution(actor, observation, mask).sample(sample_key)
        return self._stored(policy, policy.nearby(action, near_key, self.config.exploration))

    def encode(self, actor: Networks, coordinates: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._stored(actor.policy, actor.policy.encode(coordinates))

    def deterministic(self, actor: Networks, observation: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return self._distribution(actor, observation, mask).deterministic()

    def value(self, actor: Networks, observation: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        return actor.soft_value(observation, self._temperature(actor), mask)

    def regularization(
        self, actor: Networks, observation: jax.Array, action: jax.Array, mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """-(1 - alpha) T ln pi(a|s), from Eq. 2 solved for V(s); for later steps, what `later_terms` adds."""
        weights, config = weights_of(actor.log_temperature, self.config), self.config
        log_pi = log_policy(self._distribution(actor, observation, mask), action, actor.policy, config, mask)
        bonus = equations.munchausen_bonus(log_pi, weights.alpha, weights.temperature, config.munchausen_clip)
        first = bonus - weights.temperature * log_pi
        if config.n_step_target == "path":
            return first, first
        entropy = entropy_goal(actor.policy, config, mask) * action.shape[-1]
        return first, jnp.zeros_like(first) + soft_terms(entropy, 1.0, weights, config)

    def log_prob(
        self, actor: Networks, observation: jax.Array, coordinates: jax.Array, mask: jax.Array | None = None
    ) -> jax.Array:
        return self._distribution(actor, observation, mask).log_prob(actor.policy.encode(coordinates))

    def q_value(
        self, actor: Networks, observation: jax.Array, coordinates: jax.Array, mask: jax.Array | None = None
    ) -> jax.Array:
        """Eq. 1. With alpha > 0, Q - V is the soft advantage divided by (1 - alpha)."""
        temperature = self._temperature(actor)
        action = actor.policy.encode(coordinates)
        distribution = self._distribution(actor, observation, mask)
        log_pi = log_policy(distribution, action, actor.policy, self.config, mask)
        return equations.implicit_q(log_pi, actor.soft_value(observation, temperature, mask), temperature)

    def _objective(
        self, parameters: Networks, state: ImplicitState, batch: Transition[jax.Array], key: jax.Array
    ) -> tuple[jax.Array, tuple[Metrics, Networks]]:
        """The loss plus that of the temperature; the two share no parameters.

        A policy that gets better becomes sure of itself where it is now, and stays random in states of the replay that
        it has left. So T holds the entropy where the policy is, if the batch shows states of the latest steps.
        """
        online: Networks = eqx.combine(parameters, state.online)
        error, metrics, noted = self.loss(online, state.target, batch, self.config, key)
        metrics = {"loss": error, **metrics}
        if online.log_temperature is None:
            return error, (metrics, noted)
        entropy, mask = metrics["entropy_per_dimension"], batch.mask
        if batch.visited is not None:
            seen, mask = batch.visited
            entropy = jnp.mean(self._distribution(online, seen, mask).entropy(jax.random.fold_in(key, 1)))
            metrics["visited_entropy"] = entropy
        goal = mean_entropy_goal(online.policy, self.config, mask)
        apart = temperature_loss(online.log_temperature, entropy, goal)
        return error + apart, (metrics | {"temperature": jnp.exp(online.log_temperature)}, noted)

    def _bounded(self, online: Networks, td_error: jax.Array) -> Networks:
        """Keep T between a ten-thousandth of the TD errors and `max_temperature`.

        When T rises, all targets move by (1 - alpha) H T / (1 - gamma). If V cannot follow, the policy leaves the
        replayed actions, its entropy falls, and T rises further, until rewards hardly matter beside it.
        While V is far from its targets, all actions are pushed alike and the policy stays as random as it is. T falls
        meanwhile, and the gradient of the policy with it, until too little is left to learn from.
        """
        if online.log_temperature is None:
            return online
        most = math.inf if self.config.max_temperature is None else math.log(self.config.max_temperature)
        least = jnp.log(_LEAST_TEMPERATURE * td_error)
        return online._replace(log_temperature=jnp.clip(online.log_temperature, least, most))

    def _steady(self, before: Networks, online: Networks, target: Any) -> tuple[Networks, Any]:
        """Divide the logits F by the growth of T since `before`: T F, and so all Q(s, a) - Q(s, b), stay the same.

        Then a larger T makes the policy more random at once. Without this, a larger T stretches Q until the loss has
        brought the logits down; the entropy follows late, and T overshoots meanwhile.
        """
        was, now = before.log_temperature, online.log_temperature
        if self.config.softmax != "steady" or was is None or now is None:
            return online, target
        factor = jnp.exp(was - now)
        return online.rescaled(factor), None if target is None else target.rescaled(factor)

    def _stored(self, policy: Policy, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        return action.astype(policy.action_dtype), policy.decode(action)

    def _distribution(self, actor: Networks, observation: jax.Array, mask: jax.Array | None) -> Distribution:
        return restricted(actor.act(observation, self._temperature(actor)), mask)

    def _temperature(self, actor: Networks) -> jax.Array | float:
        return weights_of(actor.log_temperature, self.config).temperature

    def _optimizer(self) -> optax.GradientTransformation:
        optimizer = adam(self.config, b1=self.config.adam_b1)
        if self.config.temperature != "auto" or self.config.temperature_learning_rate is None:
            return optimizer
        import optax  # here, so that a policy can be loaded and act without it

        # Adam's steps are proportional to the learning rate, so another one for ln T is a factor on its step.
        faster = self.config.temperature_learning_rate / self.config.learning_rate

        def hasten(step: PyTree, _: PyTree) -> PyTree:
            return step._replace(log_temperature=faster * step.log_temperature)

        return optax.chain(optimizer, optax.stateless(hasten))
