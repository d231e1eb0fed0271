"""implicitq train: a run from its first step to its last."""

from __future__ import annotations

import importlib.util
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Generic

import tyro
from rich.table import Table

from implicitq.commands.display import console, table
from implicitq.commands.parsing import C, Cache, Device, Hyperparameters, Track, default, parse_with_config
from implicitq.compilation import use_cache
from implicitq.configs import Config, describe_preset
from implicitq.envs.ids import module_of
from implicitq.events import AnyListener
from implicitq.runs.layout import CURVE, checkpoint_steps, fresh_folder, read_evaluations
from implicitq.runs.metrics import first_implausible
from implicitq.types import Evaluation, InputError

if TYPE_CHECKING:
    from implicitq.agent import Agent


@dataclass(frozen=True)
class Options(Generic[C]):
    config: Hyperparameters[C]
    out: Annotated[Path | None, default("a fresh one below runs/", "DIR")] = None  # Folder of the run.
    source: Annotated[
        Path | None,
        tyro.conf.arg(
            name="from",
            metavar="DIR|FILE",
            help="Begin with the weights of this policy, or of this run's last one, instead of random ones; the shapes "
            "of all networks must be the same. The replay and the optimiser start afresh.",
            help_behavior_hint="(default: random weights)",
        ),
    ] = None
    track: Track = None
    device: Device = None
    cache: Cache = True


def run(arguments: list[str], callback: AnyListener | tuple[()] = ()) -> int:
    """`callback` hears every event of the run."""
    options = parse_with_config(Options, "train", "Train", "Pendulum-v1", arguments)
    config = options.config
    use_cache(options.cache)

    from implicitq.agent import from_config

    agent = from_config(config, device=options.device)
    if options.source is not None:
        try:
            agent.start_from(options.source)
        except InputError:
            agent.close()
            raise
    out = options.out or fresh_folder(config)
    console.print(f"{config.algorithm} on {config.env}, seed {config.seed}, {config.steps:,} steps", style="bold")
    console.print(f"{describe_preset(config)}\nrun folder: {out}")
    return learn(agent, out, options.track, callback)


def learn(
    agent: Agent, out: Path | None, track: tuple[str, ...] | None = None, callback: AnyListener | tuple[()] = ()
) -> int:
    """Train to the planned end, and say what came out and what to do next; gives the exit code."""
    from implicitq.driver import Interrupted

    try:
        agent.learn(progress=True, out=out, track=track, callback=callback)
    except Interrupted as stop:
        console.print(f"stopped at step {stop.step:,}; nothing is lost. Go on with: implicitq resume {agent.directory}")
        return 128 + stop.signal_number
    except (InputError, OSError):
        if agent.directory is not None and checkpoint_steps(agent.directory):
            console.print(f"the last checkpoint is kept; go on from it with: implicitq resume {agent.directory}")
        raise
    finally:
        agent.close()
    _tell_result(agent)
    return 0


def _tell_result(agent: Agent) -> None:
    folder, config = agent.directory, agent.config
    assert folder is not None
    evaluations = read_evaluations(folder)
    console.print(_evaluations_table(evaluations))
    diverged = first_implausible(folder)
    if diverged is not None:
        console.print(f"{diverged}; see docs/tracking.md", style="bold")
    listed = "\n".join(f"  {command}" for command in next_commands(folder, config))
    console.print(f"learning curve: {folder / CURVE}\n\nnext:\n{listed}")


def next_commands(folder: Path, config: Config) -> list[str]:
    """What to do with a finished run; each works in this install, or says what it needs."""
    from implicitq.video import hindrance

    # A run folder alone must not choose what code runs: an id with a module is typed again.
    named = f"{shlex.quote(str(folder))}{f' --env {shlex.quote(config.env)}' if module_of(config.env) else ''}"
    lacking = hindrance(config.env)
    commands = [
        f"implicitq evaluate {named} --episodes 20",
        f"implicitq video {named}{f'   (first: {lacking})' if lacking else ''}",
        f"implicitq resume {named} --steps {2 * config.steps}",
    ]
    if importlib.util.find_spec("mujoco") is not None:
        commands.append("implicitq train iq --env HalfCheetah-v5 --steps 100000")
    return [*commands, "implicitq train --help"]


def _evaluations_table(evaluations: list[Evaluation], most: int = 12) -> Table:
    """Evaluations spread evenly over the run, the last one always among them."""
    shown = table("evaluations, deterministic policy", "step", "mean return", "std", "mean length")
    stride = -(-len(evaluations) // most)
    for done in evaluations[::-1][::stride][::-1]:
        length = sum(done.lengths) / len(done.lengths)
        shown.add_row(f"{done.step:,}", f"{done.mean:,.1f}", f"{done.std:,.1f}", f"{length:,.0f}")
    return shown
