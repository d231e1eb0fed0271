"""Algorithms, one file each. A config's class says which one it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from implicitq.algorithms.base import Algorithm, Metrics
from implicitq.algorithms.iq import IQ
from implicitq.configs import Config, IQConfig
from implicitq.types import Spec

_BY_CONFIG: dict[type[Config], Callable[[Any, Spec], Algorithm]] = {IQConfig: IQ}


def build(config: Config, spec: Spec) -> Algorithm:
    """The algorithm that `config` describes, for a task of this `spec`."""
    return _BY_CONFIG[type(config)](config, spec)


__all__ = ["IQ", "Algorithm", "Metrics", "build"]
