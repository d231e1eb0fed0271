"""The commands. They parse, call, print; no logic of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from implicitq import __version__, configs
from implicitq.commands.parsing import (
    BenchCommand,
    EvaluateCommand,
    ExportCommand,
    ResumeCommand,
    TrainCommand,
    VideoCommand,
    parse,
    parse_with_config,
)
from implicitq.runs.layout import checkpoint_steps
from implicitq.types import Evaluation, InputError
from implicitq.validation import nearest

_console = Console(highlight=False, soft_wrap=True, markup=False)  # brackets in paths are brackets


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; gives the exit code."""
    warnings.showwarning = _show_warning
    command, *rest = arguments or ["--help"]
    if command in ("-h", "--help", "help"):
        _console.print(_usage())
        return 0
    if command == "--version":
        _console.print(f"implicitq {__version__}")
        return 0
    if command not in COMMANDS:
        return _fail(f"unknown command {command!r}{nearest(command, COMMANDS)}")
    try:
        return COMMANDS[command][0](rest)
    except InputError as error:
        return _fail(str(error))
    except BrokenPipeError:  # whoever read the output has seen enough, as with: implicitq --help | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or flushing at exit would complain again
        return 128 + signal.SIGPIPE
    except OSError as error:  # of the disk: no room, no right, a file where a folder should be
        return _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except KeyboardInterrupt:
        return 130


def train(arguments: list[str]) -> int:
    parsed = parse_with_config(TrainCommand, "train", "Train", "Pendulum-v1", arguments)
    config = parsed.config

    from implicitq.agent import make

    out = parsed.out or _fresh_folder(config)
    values = {k: v for k, v in vars(config).items() if k not in ("algorithm", "env")}
    agent = make(config.algorithm, config.env, **values)
    _console.print(f"{config.algorithm} on {config.env}, seed {config.seed}, {config.steps:,} steps", style="bold")
    _console.print(f"{configs.describe_preset(config)}\nrun folder: {out}")
    return _learn(agent, out)


def resume(arguments: list[str]) -> int:
    parsed = parse(ResumeCommand, prog="implicitq resume", args=arguments)

    from implicitq.agent import resume as resume_run

    agent = resume_run(parsed.directory, inexact=parsed.inexact)
    if agent.step >= (agent.config.steps if parsed.steps is None else parsed.steps):
        agent.close()
        raise InputError(
            f"{parsed.directory} is finished at step {agent.step:,}; to train on, give --steps with more than that"
        )
    if parsed.steps is not None:
        agent.extend(parsed.steps)
    _console.print(f"resuming {parsed.directory} at step {agent.step:,} of {agent.config.steps:,}")
    return _learn(agent, None)


def evaluate(arguments: list[str]) -> int:
    parsed = parse(EvaluateCommand, prog="implicitq evaluate", args=arguments)

    from implicitq.agent import load

    agent = load(parsed.directory)
    done = agent.evaluate(parsed.episodes, seed=parsed.seed)
    if parsed.json:
        print(
            json.dumps(
                {
                    "env": agent.config.env,
                    "algorithm": agent.config.algorithm,
                    "step": done.step,
                    "mean": done.mean,
                    "std": done.std,
                    "returns": done.returns,
                    "lengths": done.lengths,
                }
            )
        )
        return 0
    table = Table(title=f"{agent.config.algorithm} on {agent.config.env} after {done.step:,} steps")
    for column in ("episode", "return", "length"):
        table.add_column(column, justify="right")
    for number, (total, length) in enumerate(zip(done.returns, done.lengths, strict=True)):
        table.add_row(str(number), f"{total:,.1f}", str(length))
    table.add_section()
    table.add_row("mean ± std", f"{done.mean:,.1f} ± {done.std:,.1f}", "")
    _console.print(table)
    return 0


def video(arguments: list[str]) -> int:
    parsed = parse(VideoCommand, prog="implicitq video", args=arguments)

    from implicitq.agent import load
    from implicitq.video import record

    out = parsed.out or _beside(parsed.directory, "video.gif")
    mean = record(load(parsed.directory), out, episodes=parsed.episodes, seed=parsed.seed)
    _console.print(f"{out}: mean return {mean:,.1f} over {parsed.episodes} episode(s)")
    return 0


def export(arguments: list[str]) -> int:
    parsed = parse(ExportCommand, prog="implicitq export", args=arguments)

    from implicitq.agent import load
    from implicitq.export import export_onnx

    out = parsed.out or _beside(parsed.directory, "policy.onnx")
    export_onnx(load(parsed.directory), out)
    _console.print(f"{out}: input observation (float32, batch x features), output action", markup=False)
    return 0


def bench(arguments: list[str]) -> int:
    parsed = parse_with_config(BenchCommand, "bench", "Measure the speed of", "HalfCheetah-v5", arguments)

    from implicitq.bench import measure

    found = measure(parsed.config, steps=parsed.steps_per_repeat, repeats=parsed.repeats)
    if parsed.json:
        print(json.dumps(found))
        return 0
    sizes = "-".join(map(str, found["hidden"]))
    threads = found["versions"]["threads"]
    table = Table(title=f"{found['algorithm']} on {found['env']}, {sizes}, {threads} thread(s)", show_header=False)
    table.add_row("training steps per second", f"{found['steps_per_second']:,.0f}")
    table.add_row("one training step", f"{found['step_ms']:.2f} ms")
    table.add_row("compiled update alone", f"{found['update_ms']:.2f} ms")
    table.add_row("time outside the update", f"{found['outside_update']:.1%}")
    _console.print(table)
    _console.print(f"best of {found['repeats']} repeats of {found['steps_per_repeat']:,} steps, without evaluations")
    return 0


def theory(arguments: list[str]) -> int:
    from implicitq.commands.theory import TheoryOptions, run_theory

    try:
        run_theory(tyro.cli(TheoryOptions, prog="implicitq theory", args=arguments))
    except ValueError as error:  # the theory knows nothing of this package, InputError included
        raise InputError(str(error)) from error
    return 0


def sweep(arguments: list[str]) -> int:
    from implicitq.commands.sweep import SweepOptions, run_sweep

    return run_sweep(tyro.cli(SweepOptions, prog="implicitq sweep", args=arguments), arguments, _console)


def report(arguments: list[str]) -> int:
    from implicitq.commands.sweep import ReportOptions, run_report

    return run_report(tyro.cli(ReportOptions, prog="implicitq report", args=arguments), _console)


def collect(arguments: list[str]) -> int:
    from implicitq.commands import collect as command

    return command.run(tyro.cli(command.Options, prog="implicitq collect", args=arguments), _console)


def random_scores(arguments: list[str]) -> int:
    from implicitq.commands.sweep import RandomScoresOptions, run_random_scores

    return run_random_scores(tyro.cli(RandomScoresOptions, prog="implicitq random-scores", args=arguments), _console)


COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "train": (
        train,
        "train an agent: implicitq train [ALGO] [--env ID] [--steps N] [--seed S] [--out DIR] ...",
    ),
    "resume": (resume, "go on with a stopped run: implicitq resume DIR"),
    "evaluate": (
        evaluate,
        "play episodes with a trained policy: implicitq evaluate DIR [--episodes N] [--json]",
    ),
    "video": (video, "film a trained policy: implicitq video DIR [--out FILE]"),
    "export": (export, "write a trained policy as an ONNX model: implicitq export DIR [--out FILE]"),
    "sweep": (sweep, "run a study of the paper: implicitq sweep --study NAME --suite NAME --out DIR [--dry-run]"),
    "report": (report, "figures, tables and a page from run folders: implicitq report DIR"),
    "collect": (collect, "run folders into a few small files to keep: implicitq collect DIR OUT [--suite NAME]"),
    "random-scores": (random_scores, "measure the random policy, the zero of scores: implicitq random-scores DIR"),
    "theory": (theory, "run the paper's theorems on finite MDPs: implicitq theory [--mdp NAME ...] [--quick]"),
    "bench": (bench, "measure training speed: implicitq bench [ALGO] [--env ID] [--any-hyperparameter VALUE]"),
}


def _learn(agent, out: Path | None) -> int:
    from implicitq.driver import Interrupted

    try:
        agent.learn(progress=True, out=out)
    except Interrupted as stop:
        _console.print(
            f"stopped at step {stop.step:,}; nothing is lost. Go on with: implicitq resume {agent.directory}"
        )
        return 128 + stop.signal_number
    except (InputError, OSError):
        if agent.directory is not None and checkpoint_steps(agent.directory):
            _console.print(f"the last checkpoint is kept; go on from it with: implicitq resume {agent.directory}")
        raise
    finally:
        agent.close()
    _report(agent)
    return 0


def _report(agent) -> None:
    from implicitq.runs.curve import learning_curve
    from implicitq.runs.layout import CURVE, read_evaluations

    folder, config = agent.directory, agent.config
    evaluations = read_evaluations(folder)
    learning_curve(folder / CURVE, f"{config.algorithm} on {config.env}, seed {config.seed}", evaluations)
    _console.print(_result_table(evaluations))
    _console.print(
        f"learning curve: {folder / CURVE}\n\nnext:\n"
        f"  implicitq evaluate {folder} --episodes 20\n"
        f"  implicitq video {folder}\n"
        f"  implicitq resume {folder} --steps {2 * config.steps}\n"
        f"  implicitq train iq --env HalfCheetah-v5 --steps 100000\n"
        f"  implicitq train --help"
    )


def _result_table(evaluations: list[Evaluation], most: int = 12) -> Table:
    """Evaluations spread evenly over the run, the last one always among them."""
    table = Table(title="evaluations, deterministic policy")
    for column in ("step", "mean return", "std", "mean length"):
        table.add_column(column, justify="right")
    stride = -(-len(evaluations) // most)
    for done in evaluations[::-1][::stride][::-1]:
        length = sum(done.lengths) / len(done.lengths)
        table.add_row(f"{done.step:,}", f"{done.mean:,.1f}", f"{done.std:,.1f}", f"{length:,.0f}")
    return table


def _beside(source: Path, name: str) -> Path:
    return (source if source.is_dir() else source.parent) / name


def _fresh_folder(config: configs.Config) -> Path:
    """runs/TASK-ALGORITHM-SEED-TIME, with a number behind it if that is taken."""
    stem = f"{config.env.replace('/', '-').replace(':', '-')}-{config.algorithm}-{config.seed}"
    base = Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    number, folder = 1, base
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def _usage() -> str:
    lines = [f"  {name:<14}{summary}" for name, (_, summary) in COMMANDS.items()]
    algorithms = [f"  {name:<14}{entry.summary}" for name, entry in configs.ALGORITHMS.items()]
    return "\n".join(
        [
            "implicitq: reinforcement learning with implicit Q-values, Q = temperature * ln pi + V",
            "",
            "commands (each has --help):",
            *lines,
            "",
            "algorithms:",
            *algorithms,
            "",
            "start with: implicitq train",
        ]
    )


def _fail(message: str) -> int:
    Console(stderr=True, highlight=False, soft_wrap=True, markup=False).print(f"error: {message}")
    return 2


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True, markup=False).print(f"warning: {message}")


if __name__ == "__main__":
    main()
