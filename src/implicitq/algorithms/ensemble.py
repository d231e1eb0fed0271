"""Ensembles of implicit Q-values. The mean of members Q_i = T ln pi_i + V_i is again an implicit Q-value, exactly:

    Q_bar = mean_i Q_i = T ln pi_bar + V_bar
    pi_bar(a|s) = prod_i pi_i(a|s)^(1/M) / Z(s),    Z(s) = sum_a prod_i pi_i(a|s)^(1/M) <= 1
    V_bar(s) = mean_i V_i(s) + T ln Z(s) = mean_i [V_i(s) - T KL(pi_bar(.|s) || pi_i(.|s))]

pi_bar acts, and all members learn from the same kind of target, each from transitions of its own: the replay gives
every transition to one of them. T ln Z is zero where the members agree and negative where they do not: what they do not
share, the noise of their data, is not taken for value. Targets weigh this term by kappa, 1 if it is not calibrated:

    r + gamma V_kappa(s'),    V_kappa(s) = mean_i V_i(s) + kappa T ln Z(s)

docs/ensembles.md derives this.
Shapes: M members, B batch, of which rows i B/M to (i + 1) B/M are those of member i, O observation features, D action
dimensions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from implicitq import equations, policies
from implicitq.algorithms.base import Seen
from implicitq.algorithms.implicit import (
    ImplicitAlgorithm,
    ImplicitState,
    LossResult,
    first_log_temperature,
    later_terms,
    log_policy,
    predict,
    weights_of,
)
from implicitq.configs import IQConfig
from implicitq.networks import network_for
from implicitq.policies import Distribution, FactoredDistribution, NetworkPolicy, Policy, restricted
from implicitq.types import Spec, Transition

_MOST_PESSIMISM = 4.0  # upper bound of kappa, far above its values on our tasks


class Answer(NamedTuple):
    """The policy and the value of a member in a batch of states."""

    distribution: FactoredDistribution
    value: jax.Array  # [B]

    def allowing(self, mask: jax.Array | None) -> Answer:
        """The answer over allowed actions only. Z is a sum over these, so V_bar(s') needs the mask of s'."""
        distribution: Any = restricted(self.distribution, mask)
        return self._replace(distribution=distribution)


class Member(eqx.Module):
    """One network for policy and value: the value is its last output."""

    policy: NetworkPolicy

    def __init__(self, config: IQConfig, spec: Spec, key: jax.Array) -> None:
        policy: Any = policies.build(config, spec, key)
        network = network_for(spec, config.hidden, policy.network.outputs + 1, key, config.batch_norm)
        self.policy = eqx.tree_at(lambda policy: policy.network, policy, network)

    def __call__(self, observation: jax.Array, temperature: jax.Array | float) -> Answer:
        return self._answer(self.policy.network(observation), temperature)

    def train(
        self, observation: jax.Array, beside: jax.Array, temperature: jax.Array | float
    ) -> tuple[Answer, Answer, Member]:
        """As `MLP.train`: no gradient flows through `beside`."""
        here, there, network = self.policy.network.train(observation, beside)
        noted = eqx.tree_at(lambda member: member.policy.network, self, network)
        return self._answer(here, temperature), self._answer(there, temperature), noted

    def rescaled(self, factor: jax.Array) -> Member:
        policy: Any = self.policy
        return eqx.tree_at(lambda member: member.policy, self, policy.rescaled(factor))

    def _answer(self, outputs: jax.Array, temperature: jax.Array | float) -> Answer:
        distribution: Any = self.policy.distribution(outputs[:, :-1], temperature)
        return Answer(distribution, outputs[:, -1])


class Ensemble(NamedTuple):
    """All members; and ln T, kappa and the bounds of values, None where they are not learnt."""

    members: tuple[Member, ...]
    log_temperature: jax.Array | None = None
    pessimism: jax.Array | None = None  # kappa
    bounds: jax.Array | None = None  # [2], lowest and highest value in targets; reversed before any episode has ended

    @property
    def policy(self) -> Policy:
        """The policy of the first member, for what all share: the meaning of actions."""
        policy: Any = self.members[0].policy
        return policy

    def act(self, observation: jax.Array, temperature: jax.Array | float) -> Distribution:
        return pool(self.answers(observation, temperature), temperature)[0]

    def soft_value(
        self, observation: jax.Array, temperature: jax.Array | float, mask: jax.Array | None = None
    ) -> jax.Array:
        return pool(self.answers(observation, temperature, mask), temperature)[1]

    def begun(self) -> Ensemble:
        """As `Networks.begun`: kappa 1, and nothing seen that bounds values."""
        pessimism = None if self.pessimism is None else jnp.ones(())
        bounds = None if self.bounds is None else _nothing_seen()
        return self._replace(pessimism=pessimism, bounds=bounds)

    def rescaled(self, factor: jax.Array) -> Ensemble:
        """The ensemble with the logits of every policy times `factor`."""
        return self._replace(members=tuple(member.rescaled(factor) for member in self.members))

    def answers(
        self, observation: jax.Array, temperature: jax.Array | float, mask: jax.Array | None = None
    ) -> list[Answer]:
        return [member(observation, temperature).allowing(mask) for member in self.members]


def pool(
    answers: Sequence[Answer], temperature: jax.Array | float, pessimism: jax.Array | float = 1.0
) -> tuple[Distribution, jax.Array]:
    """pi_bar, and V_kappa = mean_i V_i + kappa T ln Z, which is V_bar for kappa = 1: [B]."""
    first, *others = (answer.distribution for answer in answers)
    common, log_z = first.pool(others)
    return common, jnp.mean(jnp.stack([answer.value for answer in answers]), axis=0) + pessimism * temperature * log_z


def loss(
    online: Ensemble, target: Ensemble | None, batch: Transition[jax.Array], config: IQConfig, key: jax.Array
) -> LossResult:
    """Eq. 2 for every member on its part of the batch, with V_kappa and pi_bar of the target in its target.

    No gradient flows into the target. With batch normalisation there are no target networks, as in iq.py.
    """
    weights = weights_of(online.log_temperature, config)
    temperature = weights.temperature
    following = batch.next_observation if target is None else batch.next_observation[:0]  # else a copy answers there
    trained = [_train(online.members, number, batch, following, temperature) for number in range(len(online.members))]
    own, here, there, members = (list(each) for each in zip(*trained, strict=True))
    common, value = pool([answer.allowing(batch.mask) for answer in here], temperature)

    before = common
    if target is None:
        after = [answer.allowing(batch.next_mask) for answer in there]
    else:
        after = target.answers(batch.next_observation, temperature, batch.next_mask)
        if config.has_kl:
            before = restricted(target.act(batch.observation, temperature), batch.mask)
    pessimism = 1.0 if online.pessimism is None else jax.lax.stop_gradient(online.pessimism)
    _, next_value = pool(after, temperature, pessimism)
    if online.bounds is not None:
        lowest, highest = jax.lax.stop_gradient(online.bounds)
        next_value = jnp.where(lowest <= highest, jnp.clip(next_value, lowest, highest), next_value)
    log_before = log_policy(before, batch.action, online.policy, config, batch.mask)
    bonus = equations.munchausen_bonus(log_before, weights.alpha, temperature, config.munchausen_clip)
    goal = equations.target(batch.reward, bonus, batch.discount, next_value)
    act = online.act if target is None else target.act
    goal = goal + later_terms(act, act if config.has_kl else None, online.policy, batch, weights, config)

    q = jnp.concatenate([_q(answer, part, online.policy, temperature, config) for answer, part in own])
    error = equations.squared_loss(q, jax.lax.stop_gradient(goal))
    log_common = log_policy(common, batch.action, online.policy, config, batch.mask)
    _, metrics = predict(common, value, log_common, weights, key)
    metrics["disagreement"] = jnp.mean(jnp.stack([answer.value for answer in here])) - metrics["value"]
    if online.pessimism is not None:
        metrics["pessimism"] = online.pessimism
    return LossResult(error, metrics, online._replace(members=tuple(members)))


def _train(
    members: Sequence[Member],
    number: int,
    batch: Transition[jax.Array],
    following: jax.Array,
    temperature: jax.Array | float,
) -> tuple[tuple[Answer, Transition[jax.Array]], Answer, Answer, Member]:
    """A member's answer on its own transitions, with these; then, without gradients, on all s and on `following` (s').

    s and s' of all members are normalised as one batch.
    """
    size = batch.reward.shape[0] // len(members)
    rolled = jnp.roll(batch.observation, -number * size, axis=0)  # its own come first
    beside = jnp.concatenate([rolled[size:], following])
    answer, others, member = members[number].train(rolled[:size], beside, temperature)
    rest = rolled.shape[0] - size

    def in_order(own: jax.Array, other: jax.Array) -> jax.Array:
        whole = jnp.concatenate([jax.lax.stop_gradient(own), other[:rest]])
        return jnp.roll(whole, number * size, axis=0)

    here: Answer = jax.tree.map(in_order, answer, others)
    there: Answer = jax.tree.map(lambda rows: rows[rest:], others)
    part: Transition[jax.Array] = jax.tree.map(lambda rows: rows[number * size : (number + 1) * size], batch)
    return (answer, part), here, there, member


def _q(
    answer: Answer, part: Transition[jax.Array], policy: Policy, temperature: jax.Array | float, config: IQConfig
) -> jax.Array:
    """Q_i(s, a) by Eq. 1: [B / M]."""
    distribution = answer.allowing(part.mask).distribution
    log_pi = log_policy(distribution, part.action, policy, config, part.mask)
    return equations.implicit_q(log_pi, answer.value, temperature)


def targets(online: Ensemble, config: IQConfig) -> Ensemble | None:
    """A copy of every member; none with batch normalisation."""
    return None if config.batch_norm else online._replace(log_temperature=None, pessimism=None, bounds=None)


def networks(config: IQConfig, spec: Spec, key: jax.Array) -> Ensemble:
    keys = jax.random.split(key, config.members)
    members = tuple(Member(config, spec, each) for each in keys)
    pessimism = None if config.calibration is None else jnp.ones(())
    bounds = _nothing_seen() if config.bound_values else None
    return Ensemble(members, first_log_temperature(config), pessimism, bounds)


def _nothing_seen() -> jax.Array:
    """Bounds of values before any episode has ended: reversed, so that they bound nothing."""
    return jnp.array([1, -1]) * jnp.finfo(jnp.float32).max


def calibrate(state: ImplicitState, seen: Seen, rate: float, decay: int | None = None) -> ImplicitState:
    """Add rate clip(overestimation, -1, 1) to kappa: it rises if V was above the returns that followed.

    With `decay`, the rate falls as 1 / sqrt(1 + updates / decay). Bounds are widened by lower and higher returns, and
    never shrink.
    """
    online: Any = state.online
    if decay is not None:
        rate /= math.sqrt(1 + seen.updates / decay)
    step = rate * float(np.clip(seen.overestimation, -1, 1))
    online = online._replace(pessimism=jnp.clip(online.pessimism + step, 0.0, _MOST_PESSIMISM))
    if online.bounds is not None:
        lowest, highest = online.bounds
        bounds = jnp.stack([jnp.minimum(lowest, seen.lowest), jnp.maximum(highest, seen.highest)])
        online = online._replace(bounds=bounds)
    return state._replace(online=online)


def build(config: IQConfig, spec: Spec) -> ImplicitAlgorithm:
    rate, decay = config.calibration, config.calibration_decay
    learns = None if rate is None else functools.partial(calibrate, rate=rate, decay=decay)
    return ImplicitAlgorithm(config, spec, loss, targets, networks, config.members, learns)
