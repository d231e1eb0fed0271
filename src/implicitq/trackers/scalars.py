"""What the numbers of a run are called where people compare runs of many libraries."""

from __future__ import annotations

import math
from collections.abc import Mapping

from implicitq.events import Evaluated, Measured

_NAMES = {
    "episode_return": "rollout/ep_rew_mean",
    "episode_length": "rollout/ep_len_mean",
    "episodes": "rollout/episodes",
    "env_restarts": "rollout/env_restarts",
    "updates": "train/n_updates",
    "entropy_per_dimension": "train/entropy",
}
FPS = "time/fps"


def of_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """A row of metrics under its names; what was not measured is left out."""
    return {_NAMES.get(name, f"train/{name}"): value for name, value in values.items() if math.isfinite(value)}


def of_event(event: Measured | Evaluated) -> dict[str, float]:
    if isinstance(event, Measured):
        return of_metrics(event.values)
    done = event.evaluation
    return {"eval/mean_reward": done.mean, "eval/mean_ep_length": sum(done.lengths) / len(done.lengths)}
