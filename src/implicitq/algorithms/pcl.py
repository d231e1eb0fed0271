"""Path consistency learning, PCL (alpha = 0) and Trust-PCL (alpha > 0): Algorithm 1 with the residual loss (Sec. 5)."""

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
    """Residual form of Eq. 2: mean of (r + alpha T ln pi_target(a|s) + gamma V(s') - T ln pi(a|s) - V(s))^2.

    The value at s' is the online one and has a gradient too, and so has the online policy all along a path. Where
    s' is random this is biased: the squared residual also holds the variance of gamma V(s').
    """
    dials = dials_of(online, config)
    bonus = kl_bonus(target.policy, batch.observation, batch.action, dials)
    goal = equations.target(batch.reward, bonus, batch.discount, online.value(batch.next_observation))
    goal = goal + terms_between(online.policy, target.policy, batch, dials, config)

    distribution = online.policy(batch.observation, dials.temperature)
    q, metrics = predict(distribution, online.value(batch.observation), batch.action, dials)
    error = equations.squared_loss(q, goal)
    return error, {"loss": error, **metrics}


class PCL(ImplicitAlgorithm):
    def loss(self, online: Networks, target: Targets, batch: Transition[jax.Array]) -> Outcome:
        error, metrics = loss(online, target, batch, self.config)
        return error, (metrics, online)

    def targets(self, online: Networks) -> Targets:
        """No target value; with alpha = 0 (PCL) no target policy either."""
        return Targets(online.policy if self.config.has_kl else None, None)
