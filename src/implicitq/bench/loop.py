"""The training loop from end to end: steps per second, and where the time goes."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import jax
import numpy as np

from implicitq.bench.clock import seconds_of, summary
from implicitq.bench.updates import updating
from implicitq.configs import Config
from implicitq.envs.making import EnvironmentMaker
from implicitq.events import Ticked
from implicitq.machine import versions
from implicitq.stacking import Together
from implicitq.train import Trainer

_NEVER = 10**9
_PARTS = {  # of a training step -> where in a trainer, and the methods that take its time
    "environment": ("envs", ("step", "next_episodes")),
    "policy": ("learner.newest", ("explore", "uniform")),
    "replay": ("replay", ("add", "begin", "sample")),
    "update": ("learner", ("update",)),
}


class WarmLoop:
    """A trainer that has compiled everything and filled its replay; evaluates, logs and saves nothing.

    `seeds` is the number of trainers in lockstep.
    """

    def __init__(self, config: Config, *, filled: int = 1_000, updated: int = 200, seeds: int = 1) -> None:
        never = {"eval_every": _NEVER, "checkpoint_every": _NEVER, "log_every": _NEVER, "steps": _NEVER}
        self.config = dataclasses.replace(config, min_replay=filled, **never)
        maker = EnvironmentMaker(config.env, action_bound=config.action_bound)
        numbered = [dataclasses.replace(self.config, seed=config.seed + number) for number in range(seeds)]
        self._group = Together([Trainer(each, maker) for each in numbered])
        self.trainer = self._group.trainers[0]
        self._rounds = self._group.run(_NEVER)
        self.advance(filled + updated)

    def advance(self, steps: int) -> None:
        """Train for `steps` environment steps, a few more with several environments, and wait for the last update."""
        until = self.trainer.step + steps
        for events in self._rounds:
            if self.trainer.step >= until and isinstance(next(iter(events.values())), Ticked):
                break
        self._group.raise_failures()
        self._group.wait()

    def seconds(self, steps: int) -> float:
        """Seconds per step, over `steps` steps."""
        return seconds_of(lambda: self.advance(steps)) / steps

    def update_seconds(self, count: int) -> float:
        """Seconds per update, over `count` updates on one batch."""
        batch = self.trainer.replay.sample(self.config.batch_size)
        return seconds_of(updating(self.trainer.learner, batch), count) / count

    def close(self) -> None:
        for trainer in self._group.trainers:
            trainer.close()


def measure(config: Config, *, steps: int = 1_000, repeats: int = 5) -> dict[str, Any]:
    """Time training steps and bare updates in turn, then the share of each part of a step."""
    loop = WarmLoop(config)
    whole, bare = [], []
    for _ in range(repeats):
        whole.append(loop.seconds(steps))
        bare.append(loop.update_seconds(steps) * config.updates_per_step)
    shares = _shares(loop, steps)
    loop.close()
    step, update = summary(whole), summary(bare)
    return {
        "algorithm": config.algorithm,
        "env": config.env,
        "hidden": list(config.hidden),
        "batch_size": config.batch_size,
        "num_envs": config.num_envs,
        "steps_per_second": 1 / step.median,
        "step_ms": step.told(1e3),
        "update_ms": update.told(1e3),
        "outside_update": float(np.median([1 - b / w for b, w in zip(bare, whole, strict=True)])),
        "shares": shares,
        "repeats": repeats,
        "steps_per_repeat": steps,
        "versions": versions(),
    }


def _shares(loop: WarmLoop, steps: int) -> dict[str, float]:
    """The share of each part in the time of a step, if each part waits for the one before."""
    taken: dict[str, float] = defaultdict(float)

    def watched(part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            result = work(*arguments, **named)
            jax.block_until_ready(loop.trainer.learner.packed if part == "update" else result)
            taken[part] += time.perf_counter() - start
            return result

        return run

    places = [
        (part, attrgetter(owner)(loop.trainer), method)
        for part, (owner, methods) in _PARTS.items()
        for method in methods
    ]
    for part, owner, method in places:
        setattr(owner, method, watched(part, getattr(owner, method)))
    try:
        whole = steps * loop.seconds(steps)
    finally:
        for _, owner, method in places:
            delattr(owner, method)  # the class still has it
    shares = {part: taken[part] / whole for part in _PARTS}
    return {**shares, "rest": 1 - sum(shares.values())}
