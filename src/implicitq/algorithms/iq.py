"""Implicit Q-values, IQ (alpha = 0) and M-IQ (alpha > 0): Algorithm 1 with the loss of Eq. 2."""

from __future__ import annotations

import jax

from implicitq import equations
from implicitq.algorithms.base import Metrics
from implicitq.algorithms.implicit import (
    ImplicitAlgorithm,
    Networks,
    Outcome,
    Targets,
    dials_of,
    kl_bonus,
    predict,
    terms_between,
)
from implicitq.configs import ImplicitConfig
from implicitq.types import Transition


def loss(
    online: Networks, target: Targets, batch: Transition[jax.Array], config: ImplicitConfig
) -> tuple[jax.Array, Metrics]:
    """Eq. 2: mean of (r + alpha T ln pi_target(a|s) + gamma V_target(s') - T ln pi(a|s) - V(s))^2.

    With whole paths, all that follows the first step is in the target, so its policy is the target policy.
    """
    assert target.value is not None
    dials = dials_of(online, config)
    bonus = kl_bonus(target.policy, batch.observation, batch.action, dials)
    goal = equations.target(batch.reward, bonus, batch.discount, target.value(batch.next_observation))
    goal = goal + terms_between(target.policy or online.policy, target.policy, batch, dials, config)

    distribution = online.policy(batch.observation, dials.temperature)
    q, metrics = predict(distribution, online.value(batch.observation), batch.action, dials)
    error = equations.squared_loss(q, jax.lax.stop_gradient(goal))
    return error, {"loss": error, **metrics}


class IQ(ImplicitAlgorithm):
    def loss(self, online: Networks, target: Targets, batch: Transition[jax.Array]) -> Outcome:
        error, metrics = loss(online, target, batch, self.config)
        return error, (metrics, online)

    def targets(self, online: Networks) -> Targets:
        """With alpha = 0 the target policy drops out of Eq. 2 and is not kept."""
        return Targets(online.policy if self.config.has_kl or self.wants_path else None, online.value)
