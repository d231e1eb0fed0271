"""implicitq resume: a stopped run goes on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from implicitq.commands.display import console
from implicitq.commands.parsing import (
    Cache,
    Device,
    EnvironmentName,
    Folder,
    Track,
    TrustFile,
    default,
    find_modules_here,
    hyperparameters,
    parse,
    parse_changes,
    split_hyperparameters,
)
from implicitq.commands.train import learn
from implicitq.compilation import use_cache
from implicitq.configs import Config
from implicitq.runs.layout import checkpoint_steps, read_config, run_folders, seeds_in
from implicitq.types import InputError


@dataclass(frozen=True)
class Options:
    """Go on with a stopped run, exactly as if it had never stopped.

    Other hyperparameters can be given here with the flags of `implicitq train`, such as --learning-rate 1e-4, except
    those on which networks, replay or logs depend. The run folder and the report note such a branch with its step,
    since the result no longer follows from the seed alone.
    """

    directory: Folder  # Run folder, or the folder of several seeds that train --seeds made.
    steps: Annotated[int | None, default("as planned", "INT")] = None  # New total, to go beyond the planned end.
    env: EnvironmentName = None  # Gymnasium id of the task.
    trust_env: TrustFile = False
    inexact: bool = False  # Go on even if versions, processor or number of threads differ from those at the start.
    track: Track = None
    device: Device = None
    cache: Cache = True
    salvage: bool = False  # If no checkpoint is intact, go on without the damaged rows of the replay.


def run(arguments: list[str]) -> int:
    changes, rest = split_hyperparameters(arguments, {field.name for field in dataclasses.fields(Options)})
    options = parse(Options, "resume", rest, hyperparameters())
    configs = _configs(options.directory)
    changed: dict[str, Any] = {}
    for config in configs if changes else ():  # some may have these settings already, if an earlier start was cut short
        changed |= parse_changes(config, changes)
    find_modules_here(options.env)
    use_cache(options.cache)

    from implicitq import agent as one
    from implicitq import seeds as several

    planned = max(config.steps for config in configs) if options.steps is None else options.steps
    if changed:
        reached = min(max(checkpoint_steps(folder), default=0) for folder in run_folders(options.directory))
        if reached >= planned:  # before the folder notes a branch
            raise _nothing_ahead(options, reached)
    agent = (several.resume if seeds_in(options.directory) else one.resume)(
        options.directory,
        options.env,
        inexact=options.inexact,
        salvage=options.salvage,
        trust_env=options.trust_env,
        device=options.device,
        **changed,
    )
    if not several.extend_or_close(agent, planned):
        raise _nothing_ahead(options, agent.step)
    console.print(f"resuming {options.directory} at step {agent.step:,} of {planned:,}")
    if changed:
        console.print(f"with other settings from here on: {', '.join(f'{k} {v}' for k, v in changed.items())}")
    return learn(agent, None, options.track)


def _nothing_ahead(options: Options, step: int) -> InputError:
    if options.steps is None:
        return InputError(
            f"{options.directory} is finished at step {step:,}; to train on, give --steps with more than that"
        )
    return InputError(
        f"--steps is the new total and must be more than the {step:,} that {options.directory} has, got "
        f"{options.steps:,}"
    )


def _configs(folder: Path) -> list[Config]:
    try:
        return [read_config(each) for each in run_folders(folder)]
    except InputError as error:
        raise InputError(f"{folder} is not a run folder: {error}") from None
