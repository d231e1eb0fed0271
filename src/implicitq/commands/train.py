"""implicitq train: a run from its first step to its last."""

from __future__ import annotations

import importlib.util
import shlex
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Generic, TypeVar

import tyro
from rich.table import Table

from implicitq.commands.display import console, table
from implicitq.commands.parsing import C, Cache, Device, Hyperparameters, Track, default, parse_with_config
from implicitq.compilation import use_cache
from implicitq.configs import Config, describe_preset
from implicitq.events import AnyListener, Event
from implicitq.runs.layout import CURVE, checkpoint_steps, fresh_folder, read_evaluations, run_folders
from implicitq.runs.logs import first_implausible
from implicitq.types import Evaluation, InputError
from implicitq.validation import module_of

if TYPE_CHECKING:
    from implicitq.agent import Agent
    from implicitq.seeds import Seeds

T = TypeVar("T")


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
    seeds: Annotated[
        tuple[int, ...] | None,
        tyro.conf.arg(
            metavar="INT ...",
            help="Train several seeds together in this process, with stacked networks, each in its own folder below "
            "that of the run: seed-0, seed-1, ... Functions are compiled once for all.",
            help_behavior_hint="(default: only that of --seed)",
        ),
    ] = None


def run(arguments: list[str], listeners: Iterable[AnyListener] = ()) -> int:
    """`listeners` hear every event, of all seeds."""
    options = parse_with_config(Options, "train", "Train", "Pendulum-v1", arguments)
    config, seeds = options.config, options.seeds
    if seeds is not None and any(word.split("=")[0] == "--seed" for word in arguments):
        raise InputError("give --seed for one run, or --seeds for several, not both")
    use_cache(options.cache)

    from implicitq.agent import from_config
    from implicitq.seeds import Seeds

    if seeds is None:
        agent = from_config(config, device=options.device)
    else:
        agent = Seeds.from_config(config, seeds, device=options.device)
    if options.source is not None:
        try:
            agent.start_from(options.source)
        except InputError:
            agent.close()
            raise
    out = options.out or fresh_folder(config, len(seeds or (0,)))
    told = f"seed {config.seed}" if seeds is None else f"seeds {' '.join(map(str, seeds))}"
    heading = f"{config.algorithm} on {config.env}, {told}, {config.steps:,} steps"
    details = f"{describe_preset(config)}\nrun folder: {out}"
    return learn(agent, out, options.track, [_heading(heading, details), *listeners])


def _heading(heading: str, details: str) -> AnyListener:
    """Prints both when the training begins: above a folder or a tracker that is refused, they would be untrue."""
    waiting = [(heading, details)]

    def print_once(event: Event) -> None:
        while waiting:
            told = waiting.pop()
            console.print(told[0], style="bold")
            console.print(told[1])

    return print_once


def learn(
    agent: Agent | Seeds,
    out: Path | None,
    track: tuple[str, ...] | None = None,
    listeners: Iterable[AnyListener] = (),
) -> int:
    """Train to the planned end, and say what came out and what to do next; gives the exit code."""
    from implicitq.driver import Interrupted
    from implicitq.seeds import Seeds

    try:
        agent.learn(progress=True, out=out, track=track, listeners=listeners)
    except Interrupted as stop:
        console.print(f"stopped at step {stop.step:,}; nothing is lost. Go on with: implicitq resume {agent.directory}")
        return 128 + stop.signal_number
    except (InputError, OSError):
        if agent.directory is not None and any(map(checkpoint_steps, run_folders(agent.directory))):
            console.print(f"the last checkpoint is kept; go on from it with: implicitq resume {agent.directory}")
        raise
    finally:
        agent.close()
    if isinstance(agent, Seeds):
        _tell_results(agent)
    else:
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

    run, lacking = _named(folder, config), hindrance(config.env)
    commands = [
        f"implicitq evaluate {run} --episodes 20",
        f"implicitq video {run}{f'   (first: {lacking})' if lacking else ''}",
        f"implicitq resume {run} --steps {2 * config.steps}",
    ]
    if importlib.util.find_spec("mujoco") is not None:
        commands.append("implicitq train iq --env HalfCheetah-v5 --steps 100000")
    return [*commands, "implicitq train --help"]


def _named(folder: Path, config: Config) -> str:
    """A run folder alone must not choose what code runs: an id with a module is typed again."""
    return f"{shlex.quote(str(folder))}{f' --env {shlex.quote(config.env)}' if module_of(config.env) else ''}"


def _tell_results(group: Seeds) -> None:
    """Print the results of several seeds, and what to do next."""
    folder = group.directory
    assert folder is not None
    folders = run_folders(folder)
    shown = table("evaluations, mean over the seeds", "step", "mean return", "std over seeds")
    rounds = list(zip(*map(read_evaluations, folders), strict=True))
    for done in _spread(rounds):
        means = [each.mean for each in done]
        shown.add_row(f"{done[0].step:,}", f"{statistics.fmean(means):,.1f}", f"{statistics.pstdev(means):,.1f}")
    console.print(shown)
    for each in folders:
        diverged = first_implausible(each)
        if diverged is not None:
            console.print(f"{each.name}: {diverged}; see docs/tracking.md", style="bold")
    config = group.agents[0].config
    words = [f"plot {shlex.quote(str(folder))}", f"report {shlex.quote(str(folder))}"]
    words += [
        f"evaluate {_named(folders[0], config)} --episodes 20",
        f"resume {_named(folder, config)} --steps {2 * config.steps}",
    ]
    console.print("\nnext:", *(f"  implicitq {command}" for command in words), sep="\n")


def _evaluations_table(evaluations: list[Evaluation]) -> Table:
    shown = table("evaluations, deterministic policy", "step", "mean return", "std", "mean length")
    for done in _spread(evaluations):
        length = sum(done.lengths) / len(done.lengths)
        shown.add_row(f"{done.step:,}", f"{done.mean:,.1f}", f"{done.std:,.1f}", f"{length:,.0f}")
    return shown


def _spread(rows: list[T], most: int = 12) -> list[T]:
    """Rows spread evenly over the run, the last one always among them."""
    return rows[::-1][:: max(1, -(-len(rows) // most))][::-1]
