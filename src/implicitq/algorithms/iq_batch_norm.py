"""IQ and M-IQ with batch normalisation in place of target networks.

After CrossQ (Bhatt et al. 2024, "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample
Efficiency and Simplicity"), which does it for the Q-functions of SAC: s and s' go through V as one batch, so that both
sides of the loss are normalised alike, and then V is steady enough to be its own target. Here no gradient flows through
s', not even by way of the statistics. The policy of the KL term is the current one, before the gradient step.
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax

from implicitq import equations
from implicitq.algorithms.implicit import (
    ImplicitAlgorithm,
    Networks,
    Outcome,
    Targets,
    dials_of,
    predict,
    terms_between,
)
from implicitq.configs import ImplicitConfig
from implicitq.types import Transition


def loss(online: Networks, batch: Transition[jax.Array], config: ImplicitConfig) -> Outcome:
    """Mean of ([r + alpha T ln pi(a|s) + gamma V(s')] - T ln pi(a|s) - V(s))^2, no gradient through the brackets."""
    dials = dials_of(online, config)
    outputs, _, network = online.policy.network.train(batch.observation, batch.observation[:0])
    distribution = online.policy.distribution(outputs, dials.temperature)
    policy = eqx.tree_at(lambda policy: policy.network, online.policy, network)
    here, there, value = online.value.train(batch.observation, batch.next_observation)

    q, metrics = predict(distribution, here, batch.action, dials)
    log_pi = distribution.log_prob(batch.action)
    bonus = equations.munchausen_bonus(log_pi, dials.alpha, dials.temperature, dials.clip)
    goal = equations.target(batch.reward, bonus, batch.discount, there)
    goal = goal + terms_between(online.policy, None, batch, dials, config)
    error = equations.squared_loss(q, jax.lax.stop_gradient(goal))
    return error, ({"loss": error, **metrics}, Networks(policy, value, online.log_temperature))


class BatchNormIQ(ImplicitAlgorithm):
    batch_norm: ClassVar[bool] = True

    def loss(self, online: Networks, target: Targets, batch: Transition[jax.Array]) -> Outcome:
        return loss(online, batch, self.config)

    def targets(self, online: Networks) -> Targets:
        return Targets(None, None)
