"""Path consistency learning, PCL (alpha = 0) and Trust-PCL (alpha > 0): Algorithm 1 with the residual loss (Sec. 5)."""

from __future__ import annotations

import jax

from implicitq import equations
from implicitq.algorithms.implicit import (
    ImplicitAlgorithm,
    LossResult,
    Networks,
    Targets,
    later_terms,
    log_policy,
    predict,
    weights_of,
)
from implicitq.configs import PCLConfig
from implicitq.policies import restricted
from implicitq.types import Spec, Transition


def loss(
    online: Networks, target: Targets, batch: Transition[jax.Array], config: PCLConfig, key: jax.Array
) -> LossResult:
    """Residual form of Eq. 2: mean of (r + alpha T ln pi_target(a|s) + gamma V(s') - T ln pi(a|s) - V(s))^2.

    The value at s' is the online one and has a gradient too, and so has the online policy at all steps of an n-step
    return. Where s' is random this is biased: the squared residual also holds the variance of gamma V(s').
    """
    weights = weights_of(online.log_temperature, config)
    distribution = restricted(online.policy(batch.observation, weights.temperature), batch.mask)
    here, there = online.value(batch.observation), online.value(batch.next_observation)
    log_pi = log_policy(distribution, batch.action, online.policy, config, batch.mask)
    q, metrics = predict(distribution, here, log_pi, weights, key)

    bonus = 0.0
    if target.policy is not None:
        before = restricted(target.policy(batch.observation, weights.temperature), batch.mask)
        log_before = log_policy(before, batch.action, online.policy, config, batch.mask)
        bonus = equations.munchausen_bonus(log_before, weights.alpha, weights.temperature, config.munchausen_clip)
    goal = equations.target(batch.reward, bonus, batch.discount, there)
    goal = goal + later_terms(online.policy, target.policy, online.policy, batch, weights, config)
    error = equations.squared_loss(q, goal)
    return LossResult(error, metrics, online)


def targets(online: Networks, config: PCLConfig) -> Targets:
    """No target value; with alpha = 0 (PCL) no target policy either."""
    return Targets(online.policy if config.has_kl else None, None)


def build(config: PCLConfig, spec: Spec) -> ImplicitAlgorithm:
    return ImplicitAlgorithm(config, spec, loss, targets)
