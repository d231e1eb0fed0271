"""Algorithms, one file each. A config's class says which one it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from implicitq.algorithms import dqn, iq, pcl, sac
from implicitq.algorithms.base import Algorithm, Metrics
from implicitq.configs import Config, DQNConfig, IQConfig, PCLConfig, SACConfig, entry_of
from implicitq.types import InputError, Spec

_BUILDERS: Mapping[type[Config], Callable[[Any, Spec], Algorithm]] = {
    IQConfig: iq.build,
    PCLConfig: pcl.build,
    SACConfig: sac.SAC,
    DQNConfig: dqn.DQN,
}


def build(config: Config, spec: Spec) -> Algorithm:
    """The algorithm that `config` describes, for a task of this `spec`; refused if it cannot act there."""
    if spec.action_kind not in config.accepted_actions:
        policy, own = getattr(config, "policy", None), entry_of(config.algorithm).values.get("policy")
        actor = config.algorithm if policy == own else f"{config.algorithm} with policy {policy!r}"
        raise InputError(
            f"{actor} cannot act in a {spec.action_kind} action space, which {config.env} has; "
            f"it accepts {' or '.join(config.accepted_actions)}"
        )
    return _BUILDERS[type(config)](config, spec)


__all__ = ["Algorithm", "Metrics", "build"]
