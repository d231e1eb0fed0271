"""Implicit Q-values, IQ (alpha = 0) and M-IQ (alpha > 0): Algorithm 1 with the loss of Eq. 2.

`batch_norm` takes the place of the target networks, after CrossQ (Bhatt et al. 2024, "CrossQ: Batch Normalization in
Deep Reinforcement Learning for Greater Sample Efficiency and Simplicity"), which does it for the Q-functions of SAC:
s and s' go through V as one batch, so that both sides of the loss are normalised alike, and then V is steady enough to
be its own target. Here no gradient flows through s', not even by way of the statistics.
"""

from __future__ import annotations

import jax

from implicitq import equations
from implicitq.algorithms import ensemble
from implicitq.algorithms.implicit import (
    ImplicitAlgorithm,
    LossResult,
    Networks,
    Targets,
    later_terms,
    log_policy,
    needs_later_steps,
    predict,
    weights_of,
)
from implicitq.configs import IQConfig
from implicitq.policies import restricted
from implicitq.types import Spec, Transition


def loss(
    online: Networks, target: Targets, batch: Transition[jax.Array], config: IQConfig, key: jax.Array
) -> LossResult:
    """Eq. 2: mean of (r + alpha T ln pi_target(a|s) + gamma V_target(s') - T ln pi(a|s) - V(s))^2.

    No gradient flows into the target. Without target networks, pi_target and V_target are the online ones. In n-step
    returns all that follows the first step is part of the target, so its policy is the target policy.

    Where some actions are forbidden, pi is over the others, in states where an action was taken; V needs no mask of s',
    since it is learnt where s' is the state that is acted in.
    """
    weights = weights_of(online.log_temperature, config)
    distribution, policy = online.policy.train(batch.observation, weights.temperature)
    distribution = restricted(distribution, batch.mask)
    here, there, value = online.value.train(batch.observation, batch.next_observation)
    log_pi = log_policy(distribution, batch.action, policy, config, batch.mask)
    q, metrics = predict(distribution, here, log_pi, weights, key)

    if target.value is None:
        before, next_value = distribution, there
    else:
        before = None if target.policy is None else target.policy(batch.observation, weights.temperature)
        next_value = target.value(batch.next_observation)
    bonus = 0.0
    if before is not None:
        log_before = log_policy(restricted(before, batch.mask), batch.action, policy, config, batch.mask)
        bonus = equations.munchausen_bonus(log_before, weights.alpha, weights.temperature, config.munchausen_clip)
    goal = equations.target(batch.reward, bonus, batch.discount, next_value)
    goal = goal + later_terms(target.policy or policy, target.policy, policy, batch, weights, config)
    error = equations.squared_loss(q, jax.lax.stop_gradient(goal))
    return LossResult(error, metrics, online._replace(policy=policy, value=value))


def targets(online: Networks, config: IQConfig) -> Targets:
    """None with batch normalisation. A target policy is needed for KL terms and n-step targets of a path."""
    if config.batch_norm:
        return Targets(None, None)
    return Targets(online.policy if config.has_kl or needs_later_steps(config) else None, online.value)


def build(config: IQConfig, spec: Spec) -> ImplicitAlgorithm:
    if config.members > 1:
        return ensemble.build(config, spec)
    return ImplicitAlgorithm(config, spec, loss, targets)
