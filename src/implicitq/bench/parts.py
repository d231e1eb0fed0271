"""What a run does besides: acting, keeping transitions, saving itself, and starting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from gymnasium.vector.utils import batch_space

from implicitq.agent import Agent, from_config
from implicitq.bench.clock import by_turns, seconds_of, summary
from implicitq.bench.loop import WarmLoop
from implicitq.bench.updates import adding, random_replay
from implicitq.compilation import VARIABLE
from implicitq.configs import Config
from implicitq.events import CheckpointDue, Event, Ticked
from implicitq.runs.folder import RunFolder

_BATCH = 256
WARM_UP = 100  # steps before the first update; how many it takes to fill a replay is another matter
_COMPILING = {  # events of JAX -> what they are part of
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "tracing",
    "/jax/core/compile/backend_compile_duration": "compiling",
}
_LOADED = "/jax/compilation_cache/cache_hits"


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
    """Transitions per second in and out of a replay that is full, or has `written` rows; and bytes per transition."""
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
    """The time of a checkpoint with the rows of `every` steps, and its share beside these steps.

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
    """Add `steps` copies of a row to the replay and count them as steps, as if the run had made them."""
    trainer, count = loop.trainer, loop.config.num_envs
    batch, observations = trainer.replay.sample(loop.config.batch_size), trainer._observations
    assert observations is not None
    no = np.zeros(count, bool)
    for _ in range(steps // count):
        trainer.replay.add(batch.action[:1], batch.reward[:1], no, no, observations, trainer.envs.masks)
        trainer.step += count


def measure_start(code: str, repeats: int) -> dict[str, Any]:
    """Time the start of a training: `code` runs in a fresh Python and calls `watched`. Without and with a cache."""
    with tempfile.TemporaryDirectory(prefix="implicitq-bench-") as folder:
        first = _start(code, Path(folder))
        again = [_start(code, Path(folder)) for _ in range(repeats)]
    warm = {name: summary([found[name] for found in again]).median for name in first}
    return {"fresh": first, "cached": warm, "warm_up_steps": WARM_UP, "unit": "seconds"}


def _start(code: str, folder: Path) -> dict[str, float]:
    kept = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    kept |= {VARIABLE: str(folder / "compiled"), "IMPLICITQ_BEGAN": repr(time.time())}
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"the run that was to be timed failed: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def watched(run: Callable[..., Any], arguments: list[str]) -> None:
    """Run a training command up to its first update, print its times as JSON, and end the process.

    `compiling` are the seconds in which functions were compiled or loaded, `loaded` is how many were.
    """
    taken: dict[str, float] = defaultdict(float)

    def note(event: str, duration_secs: float, **_: Any) -> None:
        if event in _COMPILING:
            taken[_COMPILING[event]] += duration_secs

    def note_loaded(event: str, **_: Any) -> None:
        taken["loaded"] += event == _LOADED

    jax.monitoring.register_event_duration_secs_listener(note)
    jax.monitoring.register_event_listener(note_loaded)
    began, found = float(os.environ["IMPLICITQ_BEGAN"]), {}

    def clock(event: Event) -> None:
        if isinstance(event, Ticked) and event.step == 1:
            found["first_step"] = time.time() - began
        if isinstance(event, Ticked) and event.step == WARM_UP + 1:  # its action waited for the first update
            found["first_update"] = time.time() - began
            kinds = ("tracing", "compiling", "loaded")
            print(json.dumps({**found, **{kind: taken[kind] for kind in kinds}}), flush=True)
            os._exit(0)  # the rest of the run is of no interest

    run([*arguments, "--min-replay", str(WARM_UP), "--num-envs", "1"], listeners=[clock])
