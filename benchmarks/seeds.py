"""Seeds trained in step against the same seeds one after the other, in CPU time of one process.

    taskset -c 0 python benchmarks/seeds.py --env Pendulum-v1 --hidden 64 64

Both take turns, so that both meet the same noise; the median over the turns counts. `start` is all that comes before
the first of these turns: making the agents, compiling and the first 1,200 steps of every seed.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tyro

from implicitq import configs
from implicitq.envs.making import EnvironmentMaker
from implicitq.stacking import Together
from implicitq.train import Trainer

_NEVER = 10**9


@dataclass(frozen=True)
class Options:
    algorithm: str = "iq-auto"
    env: str = "Pendulum-v1"
    hidden: tuple[int, ...] = (256, 256)
    seeds: int = 4
    steps: int = 300  # Of every seed, per turn.
    turns: int = 7
    json: bool = False  # One line of JSON, for `peers/measure.py`.


def main(options: Options) -> None:
    never = dict.fromkeys(("eval_every", "checkpoint_every", "log_every", "steps"), _NEVER)
    config = configs.resolve(options.algorithm, options.env, hidden=options.hidden, min_replay=1_000, **never)
    maker = EnvironmentMaker(config.env, action_bound=config.action_bound)

    def start(grouped: bool) -> list[Callable[[int], None]]:
        made = [Trainer(dataclasses.replace(config, seed=seed), maker) for seed in range(options.seeds)]
        runs = [_advancing(group) for group in ([Together(made)] if grouped else [Together([each]) for each in made])]
        for advance in runs:
            advance(1_200)
        return runs

    begun = {grouped: _timed(lambda grouped=grouped: start(grouped)) for grouped in (False, True)}
    taken: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(options.turns):
        for grouped, (_, runs) in begun.items():
            seconds, _ = _timed(lambda runs=runs: [advance(options.steps) for advance in runs])
            taken[grouped].append(1e3 * seconds / options.steps)
    if options.json:
        told = {"one after the other": False, "in step": True}
        found = {name: {"start": begun[grouped][0], "step_ms": taken[grouped]} for name, grouped in told.items()}
        print(json.dumps({**dataclasses.asdict(options), "batch_size": config.batch_size, **found}))
        return
    apart, stacked = (statistics.median(taken[grouped]) for grouped in (False, True))
    ratios = sorted(one / other for one, other in zip(taken[False], taken[True], strict=True))
    print(
        f"{options.algorithm} {options.env} {'-'.join(map(str, options.hidden))}, {options.seeds} seeds, CPU ms for "
        f"one step of all: {apart:.2f} one after the other, {stacked:.2f} in step: {apart / stacked:.2f}x "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f}); start: {begun[False][0]:.0f} s and {begun[True][0]:.0f} s"
    )


def _advancing(group: Together) -> Callable[[int], None]:
    rounds = group.run(_NEVER)

    def advance(steps: int) -> None:
        until = group.step + steps
        while group.step < until:
            next(rounds)
        group.wait()

    return advance


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds, and what came out."""
    start = time.process_time()
    done = work()
    return time.process_time() - start, done


if __name__ == "__main__":
    main(tyro.cli(Options))
