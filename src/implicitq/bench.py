"""How fast training is here, and how much of the time is spent outside the compiled update."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax

from implicitq.configs import Config
from implicitq.envs.making import EnvironmentMaker
from implicitq.events import Ticked
from implicitq.runs.conditions import versions
from implicitq.train import Trainer

_NEVER = 10**9


def measure(config: Config, *, steps: int = 1_000, repeats: int = 5) -> dict[str, Any]:
    """Time whole training steps and bare updates in turn, without evaluations; the best of each counts.

    Machines are noisy: the fastest repeat is the one least disturbed, and alternating exposes both to the same noise.
    """
    config = dataclasses.replace(
        config, min_replay=1_000, eval_every=_NEVER, checkpoint_every=_NEVER, log_every=_NEVER, steps=_NEVER
    )
    trainer = Trainer(config, EnvironmentMaker(config.env, action_bound=config.action_bound))
    events = trainer.run(_NEVER)

    def advance(count: int) -> None:
        until = trainer.step + count
        while trainer.step < until:
            next(event for event in events if isinstance(event, Ticked))
        jax.block_until_ready(trainer.learner.leaves)

    advance(1_000 + 200)  # fill the replay, compile, warm up
    whole, bare = [], []
    for _ in range(repeats):
        whole.append(_seconds(lambda: advance(steps)) / steps)
        bare.append(_seconds(lambda: _updates(trainer, steps)) / steps)
    trainer.close()
    step, update = min(whole), min(bare)
    return {
        "algorithm": config.algorithm,
        "env": config.env,
        "hidden": list(config.hidden),
        "num_envs": config.num_envs,
        "steps_per_second": 1 / step,
        "step_ms": 1e3 * step,
        "update_ms": 1e3 * update,
        "outside_update": 1 - update / step,
        "repeats": repeats,
        "steps_per_repeat": steps,
        "versions": versions(),
    }


def _updates(trainer: Trainer, count: int) -> None:
    batch = trainer.replay.sample(trainer.config.batch_size)
    for _ in range(count):
        trainer.learner.update(batch)
        # A training step waits for its update too, since the next action needs it.
        jax.block_until_ready(trainer.learner.leaves[0])


def _seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
