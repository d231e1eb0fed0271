"""All that can be measured, one part after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from implicitq.bench import parts, updates
from implicitq.bench.growth import measure_growth
from implicitq.bench.loop import WarmLoop, measure
from implicitq.bench.policies import measure_policies
from implicitq.configs import Config
from implicitq.machine import versions
from implicitq.types import InputError, Spec

_QUICK_SHAPES = ("Pendulum-v1", "HalfCheetah-v5")

Tell = Callable[[str], None]  # what is being measured now


def measure_parts(
    config: Config, chosen: Collection[str], start: str, *, repeats: int, steps: int, quick: bool, tell: Tell
) -> dict[str, Any]:
    """Those of `bench.PARTS` that are chosen. `start` is the code that `parts.measure_start` takes."""
    about, found = f"{config.algorithm} on {config.env}", {}
    if "updates" in chosen:
        found["updates"] = _updates(config, repeats, quick, tell)
    if "loop" in chosen:
        tell(f"the training loop of {about}")
        found["loop"] = measure(config, steps=steps, repeats=repeats)
    if "predict" in chosen:
        tell(f"predict of {about}")
        found["predict"] = parts.predict_of(config, repeats)
    if "replay" in chosen:
        tell("the replay")
        found["replay"] = parts.measure_replay(config, repeats)
    if "checkpoint" in chosen:
        tell(f"checkpoints of {about}")
        loop = WarmLoop(config, filled=500, updated=50)
        found["checkpoint"] = parts.measure_checkpoint(loop, loop.seconds(steps), repeats)
        loop.close()
    if "start" in chosen:
        tell(f"the start of {about}")
        found["start"] = parts.measure_start(start, min(repeats, 3))
    if "policies" in chosen:
        tell(f"policies of {about}")
        found["policies"] = measure_policies(config, _spec(config, "--parts policies"), repeats)
    return {**found, "versions": versions()}


def measure_all_growth(config: Config, *, repeats: int, quick: bool, tell: Tell) -> dict[str, Any]:
    """How cost grows from the settings of this config, for a task whose sizes are known."""
    rows = measure_growth(config, _spec(config, "--growth"), repeats, quick, tell)
    return {"growth": [row._asdict() for row in rows], "versions": versions()}


def _spec(config: Config, flag: str) -> Spec:
    if config.env not in updates.SHAPES:
        raise InputError(f"{flag} knows the sizes of {', '.join(updates.SHAPES)}, got {config.env}")
    return updates.spec_of_shape(config.env)


def _updates(config: Config, repeats: int, quick: bool, tell: Tell) -> list[dict[str, Any]]:
    found = []
    names = tuple(dict.fromkeys((*updates.ALGORITHMS, config.algorithm)))
    for env in _QUICK_SHAPES if quick else updates.SHAPES:
        for name in names:
            tell(f"updates of {name} on {env}")
            alike = updates.config_like(config, name, env)
            found.append(updates.measure_updates(alike, updates.spec_of_shape(env), repeats))
    return found
