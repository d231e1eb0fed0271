"""Algorithms, one file each. A config's class says which one it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from implicitq.algorithms.base import Algorithm, Metrics
from implicitq.algorithms.dqn import DQN
from implicitq.algorithms.iq import IQ
from implicitq.algorithms.iq_batch_norm import BatchNormIQ
from implicitq.algorithms.pcl import PCL
from implicitq.algorithms.sac import SAC
from implicitq.configs import Config, DQNConfig, IQConfig, PCLConfig, SACConfig
from implicitq.types import InputError, Spec


def _iq(config: IQConfig, spec: Spec) -> Algorithm:
    return BatchNormIQ(config, spec) if config.batch_norm else IQ(config, spec)


_BY_CONFIG: dict[type[Config], Callable[[Any, Spec], Algorithm]] = {
    IQConfig: _iq,
    PCLConfig: PCL,
    SACConfig: SAC,
    DQNConfig: DQN,
}


def build(config: Config, spec: Spec) -> Algorithm:
    """The algorithm that `config` describes, for a task of this `spec`; refused if it cannot act there."""
    if spec.action_kind not in config.accepted_actions:
        raise InputError(
            f"{config.algorithm} cannot act in a {spec.action_kind} action space, which {config.env} has; "
            f"it accepts {' or '.join(config.accepted_actions)}"
        )
    return _BY_CONFIG[type(config)](config, spec)


__all__ = ["DQN", "IQ", "PCL", "SAC", "Algorithm", "BatchNormIQ", "Metrics", "build"]
