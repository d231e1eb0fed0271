"""What each class of policies costs, beside the others: an update, and an action for one state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from implicitq import configs
from implicitq.bench.clock import by_turns
from implicitq.bench.updates import learner_with_batch, products, updating
from implicitq.configs import Config
from implicitq.learner import Learner
from implicitq.types import InputError, Spec, Transition


def measure_policies(config: Config, spec: Spec, repeats: int) -> list[dict[str, Any]]:
    """One row for each class that can take the place of the config's own; all are measured by turns."""
    works: dict[str, Callable[[], Any]] = {}
    gflop: dict[str, float] = {}
    for name, alike in alternatives(config).items():
        learner, batch = learner_with_batch(alike, spec)
        gflop[name] = products(alike, spec, batch) / 1e9
        works |= _works(name, learner, batch)
    found = by_turns(works, repeats)
    return [
        {
            "policy": name,
            "gflop": gflop[name],
            "update_ms": found[f"{name} update"].told(1e3),
            "sample_us": found[f"{name} sample"].told(1e6),
            "deterministic_us": found[f"{name} deterministic"].told(1e6),
        }
        for name in gflop
    ]


def alternatives(config: Config) -> dict[str, Config]:
    """The config with every class of policies that its other settings allow."""
    if not hasattr(config, "policy"):
        raise InputError(f"{config.algorithm} has one policy, so there are no policies to compare")
    found = {}
    for name in configs.POLICIES:
        try:
            found[name] = configs.changed(config, policy=name)
        except InputError:  # such as a flow with several members
            continue
    return found


def _works(name: str, learner: Learner, batch: Transition[np.ndarray]) -> dict[str, Callable[[], Any]]:
    state = np.array(batch.observation[:1])
    return {
        f"{name} update": updating(learner, batch),
        f"{name} sample": lambda: learner.newest.sample(state, 0)[0].block_until_ready(),
        f"{name} deterministic": lambda: learner.newest.deterministic(state).block_until_ready(),
    }
