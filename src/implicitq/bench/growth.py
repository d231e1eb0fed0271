"""How cost grows: one thing is varied, all else stays as the config has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

from implicitq.bench.clock import by_turns
from implicitq.bench.loop import WarmLoop
from implicitq.bench.parts import measure_replay, repeat_last_row
from implicitq.bench.updates import learner_with_batch, products, updating
from implicitq.configs import Config
from implicitq.types import Spec

_UPDATES = {  # what is varied in an update
    "width": (64, 128, 256, 512, 1_024),
    "batch_size": (32, 64, 128, 256, 512, 1_024),
    "bins": (3, 5, 11, 21, 41, 81),
    "action_dimensions": (1, 2, 4, 8, 16, 32),
}
_ENVIRONMENTS = (1, 2, 4, 8, 16)
_SEEDS = (1, 2, 4, 8)
_REPLAY_SIZES = (10_000, 100_000, 1_000_000)
_STEPS_BEHIND = (10_000, 100_000, 1_000_000, 2_000_000)


class Growth(NamedTuple):
    what: str
    value: int
    measure: str  # what is measured, with its unit
    cost: float
    gflop: float | None = None  # of the products of matrices, where there are such


def measure_growth(config: Config, spec: Spec, repeats: int, quick: bool, tell: Callable[[str], None]) -> list[Growth]:
    """All rows; `quick`: only the ends of each scale, and nothing that takes long to fill."""
    found: list[Growth] = []
    for what, values in _UPDATES.items():
        for value in _ends(values) if quick else values:
            tell(f"growth: {what} {value:,}")
            varied = _varied(config, spec, what, value)
            if varied is not None:
                found.append(_update(*varied, what, value, repeats))
    for count in _ends(_ENVIRONMENTS) if quick else _ENVIRONMENTS:
        tell(f"growth: num_envs {count}")
        found.append(_environments(config, count, 3 if quick else repeats))
    for count in _SEEDS[:2] if quick else _SEEDS:
        tell(f"growth: {count} seed(s) in step")
        found.append(_seeds(config, count, 3 if quick else repeats))
    for size in _REPLAY_SIZES[:2] if quick else _REPLAY_SIZES:
        tell(f"growth: replay of {size:,} rows")
        found += _replay(config, size, repeats)
    if not quick:
        found += _steps_behind(config, repeats, tell)
    return found


def _ends(values: tuple[int, ...]) -> tuple[int, ...]:
    return values[0], values[-1]


def _varied(config: Config, spec: Spec, what: str, value: int) -> tuple[Config, Spec] | None:
    """None for a setting that the algorithm does not have."""
    if what == "action_dimensions":
        return config, dataclasses.replace(spec, action_dimensions=value)
    if what == "width":
        return dataclasses.replace(config, hidden=(value,) * len(config.hidden)), spec
    return (dataclasses.replace(config, **{what: value}), spec) if hasattr(config, what) else None


def _update(config: Config, spec: Spec, what: str, value: int, repeats: int) -> Growth:
    learner, batch = learner_with_batch(config, spec)
    seconds = by_turns({"update": updating(learner, batch)}, repeats)["update"].median
    return Growth(what, value, "update, ms", 1e3 * seconds, products(config, spec, batch) / 1e9)


def _environments(config: Config, count: int, repeats: int) -> Growth:
    """Every step of every environment has an update, as with one environment."""
    loop = WarmLoop(dataclasses.replace(config, num_envs=count), filled=500, updated=100)
    seconds = by_turns({"step": lambda: loop.advance(count)}, repeats, seconds=1.0)["step"].median / count
    loop.close()
    return Growth("num_envs", count, "step of one environment with its update, ms", 1e3 * seconds)


def _seeds(config: Config, count: int, repeats: int) -> Growth:
    loop = WarmLoop(config, filled=500, updated=100, seeds=count)
    seconds = by_turns({"step": lambda: loop.advance(1)}, repeats, seconds=1.0)["step"].median / count
    loop.close()
    return Growth("seeds", count, "step of one seed with its update, ms", 1e3 * seconds)


def _replay(config: Config, size: int, repeats: int) -> Iterator[Growth]:
    found = measure_replay(config, repeats, size)
    yield Growth("replay_size", size, "insert, us", 1e6 / found["inserts_per_second"])
    yield Growth("replay_size", size, f"batch of {config.batch_size}, us", 1e6 / found["batches_per_second"])


def _steps_behind(config: Config, repeats: int, tell: Callable[[str], None]) -> Iterator[Growth]:
    """The cost of a training step late in a run; the steps before it are mostly copies of one row in the replay."""
    loop = WarmLoop(config, filled=500, updated=100)
    for steps in _STEPS_BEHIND:
        tell(f"growth: after {steps:,} steps")
        repeat_last_row(loop, steps - loop.trainer.step)
        seconds = by_turns({"step": lambda: loop.advance(1)}, repeats, seconds=1.0)["step"].median
        yield Growth("steps", steps, "training step, ms", 1e3 * seconds)
    loop.close()
