"""implicitq tune: a search over hyperparameters."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic

import tyro

from implicitq.commands.display import console
from implicitq.commands.parsing import (
    C,
    Cache,
    Hyperparameters,
    given_names,
    parse_with_config,
    split_algorithm,
)
from implicitq.compilation import use_cache
from implicitq.tuning.space import Space, default_space, read_space
from implicitq.types import InputError


@dataclass(frozen=True)
class Options(Generic[C]):
    config: Hyperparameters[C]
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/tune")  # Folder of the search.
    trials: int = 30  # Settings to try in all.
    space: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            metavar="FILE.toml|NAME=VALUES ...",
            help="What to search: learning_rate=1e-5..1e-3 is a range, bins=5,11,21 are choices; or a file with tables "
            "such as [learning_rate] low = 1e-5, high = 1e-3, log = true and [hidden] choices = [[64], [256, 256]].",
            help_behavior_hint="(default: what matters most for the algorithm, except flags that you give)",
        ),
    ] = ()
    seeds: int = 1  # Runs of each trial, with --seed, --seed + 1, ...; their mean counts.
    cache: Cache = True
    prune: bool = True  # Stop a trial early if it is worse than the median of the others at that step.


def run(arguments: list[str]) -> int:
    options = parse_with_config(Options, "tune", _PURPOSE, "Pendulum-v1", arguments)
    if options.trials < 1 or options.seeds < 1:
        raise InputError(f"trials and seeds must be at least 1, got {options.trials} and {options.seeds}")
    use_cache(options.cache)
    config = options.config
    space = _space(options, arguments)

    from implicitq.driver import Interrupted
    from implicitq.tuning.study import BEST, Plan, search

    console.print(f"{config.algorithm} on {config.env}, {config.steps:,} steps a run; searched:", style="bold")
    for name, dimension in space.items():
        console.print(f"  {name}: {dimension.told()}")
    plan = Plan(config, space, options.seeds, options.prune)
    try:
        found = search(options.out, plan, options.trials, console.print)
    except (Interrupted, KeyboardInterrupt) as stop:
        console.print("stopped; nothing is lost. The same command goes on.")
        return 128 + getattr(stop, "signal_number", 2)
    console.print(f"{found.finished} trials finished, {found.pruned} stopped early, {found.failed} failed")
    if found.best is None:
        raise InputError("no trial was finished, so there is no best one")
    preset = options.out / BEST
    command = ["implicitq", "train", config.algorithm, "--env", config.env, "--preset", str(preset)]
    console.print(
        f"best mean return {found.best:,.1f}, the highest of {found.finished}, so it flatters; its settings are in "
        f"{preset}\ntry them with a fresh seed: {shlex.join(command)} --seed {config.seed + options.seeds}"
    )
    return 0


def _space(options: Options, arguments: list[str]) -> Space:
    given = given_names(split_algorithm(arguments)[1])
    if not options.space:
        space = default_space(options.config, given)
    else:
        space = read_space(options.space, options.config)
        twice = sorted(given & space.keys())
        if twice:
            raise InputError(f"{twice[0]} is given as a flag and searched too; leave out one of the two")
    if not space:
        raise InputError("there is nothing to search; give --space")
    return space


_PURPOSE = (
    "Search for good hyperparameters with Optuna: each trial trains with other settings, hopeless ones are stopped "
    "early, and the best settings are written to DIR/best.json, which `implicitq train --preset DIR/best.json` takes. "
    "Flags set what all trials share. Ctrl-C stops and loses nothing; the same command goes on, and two at once share "
    "the work. The score of a trial is the mean return of its last three evaluations. Searched here:"
)
