"""What a run does besides: acting, keeping transitions, saving itself."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space

from implicitq.agent import Agent, from_config
from implicitq.bench.clock import by_turns, seconds_of, summary
from implicitq.bench.loop import WarmLoop
from implicitq.bench.updates import adding, random_replay
from implicitq.configs import Config
from implicitq.events import CheckpointDue
from implicitq.runs.folder import RunFolder

_BATCH = 256


def measure_predict(agent: Agent, repeats: int) -> dict[str, Any]:
    """`predict` of the deterministic policy, for one observation and for many at once."""
    space = agent.observation_space
    works = {"1": space.sample(), str(_BATCH): batch_space(space, _BATCH).sample()}
    found = by_turns(
        {
            name: lambda observation=observation: agent.predict(observation, deterministic=True)
            for name, observation in works.items()
        },
        repeats,
    )
    return {"observations": {name: timing.told(1e6) for name, timing in found.items()}, "unit": "microseconds"}


def predict_of(config: Config, repeats: int) -> dict[str, Any]:
    with from_config(config) as agent:
        return measure_predict(agent, repeats)


def measure_replay(config: Config, repeats: int, size: int = 100_000, written: int | None = None) -> dict[str, Any]:
    """Transitions per second in and out of a replay that is full, or has so many rows behind it; and their bytes."""
    with from_config(config) as agent:
        trainer = agent._trainer
        assert trainer is not None
        spec, dtype = trainer.spec, trainer.learner.action_dtype
    replay = random_replay(config, spec, dtype, size, size if written is None else written)
    works = {"insert": adding(replay, spec, dtype), "sample": lambda: replay.sample(config.batch_size)}
    found = by_turns(works, repeats)
    return {
        "rows": size,
        "bytes_per_transition": replay.nbytes / size,
        "inserts_per_second": 1 / found["insert"].median,
        "batches_per_second": 1 / found["sample"].median,
        "sampled_per_second": config.batch_size / found["sample"].median,
        "batch_size": config.batch_size,
    }


def measure_checkpoint(loop: WarmLoop, step_seconds: float, repeats: int, every: int = 10_000) -> dict[str, Any]:
    """A checkpoint with the rows that `every` steps bring, beside the time that these steps take.

    The rows are copies of the last one: what a checkpoint writes depends on their number only.
    """
    trainer = loop.trainer
    times = []
    with tempfile.TemporaryDirectory(prefix="implicitq-bench-") as folder:
        run = RunFolder.create(Path(folder) / "run", loop.config)
        run.prepare(trainer)
        for _ in range(repeats + 1):
            repeat_last_row(loop, every)
            times.append(seconds_of(lambda: run.on_event(CheckpointDue(trainer.step))))
        run.close()
    seconds = summary(times[1:])  # the first one also has what was there before
    return {
        "every": every,
        "seconds": seconds.told(),
        "share": seconds.median / (seconds.median + every * step_seconds),
    }


def repeat_last_row(loop: WarmLoop, steps: int) -> None:
    """Count so many steps more, and fill the replay with as many copies of a row: a run that has them behind it."""
    trainer, count = loop.trainer, loop.config.num_envs
    batch, observations = trainer.replay.sample(loop.config.batch_size), trainer._observations
    assert observations is not None
    no = np.zeros(count, bool)
    for _ in range(steps // count):
        trainer.replay.add(batch.action[:1], batch.reward[:1], no, no, observations, trainer.envs.masks)
        trainer.step += count
