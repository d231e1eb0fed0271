"""implicitq resume: a stopped run goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from implicitq.commands.display import console
from implicitq.commands.parsing import EnvironmentName, Folder, Track, TrustFile, default, parse
from implicitq.commands.train import learn
from implicitq.types import InputError


@dataclass(frozen=True)
class Options:
    """Go on with a run that was stopped, exactly as if it had not been."""

    directory: Folder  # Run folder.
    steps: Annotated[int | None, default("as planned", "INT")] = None  # New total, to go beyond the planned end.
    env: EnvironmentName = None  # Gymnasium id of the task.
    trust_env: TrustFile = False
    inexact: bool = False  # Accept other versions, another processor or number of threads than the run began with.
    track: Track = None
    salvage: bool = False  # If no checkpoint is good, go on without the rows of the replay that are damaged.


def run(arguments: list[str]) -> int:
    options = parse(Options, "resume", arguments)

    from implicitq.agent import resume

    agent = resume(
        options.directory,
        options.env,
        inexact=options.inexact,
        salvage=options.salvage,
        trust_env=options.trust_env,
    )
    if agent.step >= (agent.config.steps if options.steps is None else options.steps):
        agent.close()
        raise InputError(
            f"{options.directory} is finished at step {agent.step:,}; to train on, give --steps with more than that"
        )
    if options.steps is not None:
        agent.extend(options.steps)
    console.print(f"resuming {options.directory} at step {agent.step:,} of {agent.config.steps:,}")
    return learn(agent, None, options.track)
