"""What the commands accept, and how their flags are read."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from implicitq import configs
from implicitq.types import InputError

C = TypeVar("C", bound=configs.Config)


@dataclass(frozen=True)
class TrainCommand(Generic[C]):
    config: Annotated[C, tyro.conf.OmitArgPrefixes]
    out: Path | None = None  # Folder of the run; by default a fresh one below runs/.


@dataclass(frozen=True)
class ResumeCommand:
    """Go on with a run that was stopped, exactly as if it had not been."""

    directory: tyro.conf.Positional[Path]  # Run folder.
    steps: int | None = None  # New total number of steps, to go beyond the planned end.
    inexact: bool = False  # Accept other versions, processor or number of threads than the run began with.


@dataclass(frozen=True)
class EvaluateCommand:
    """Play whole episodes with the deterministic policy of a run folder or a policy file."""

    directory: tyro.conf.Positional[Path]  # Run folder or policy file.
    episodes: int = 10  # Episodes to play.
    seed: int | None = None  # Seed of the episodes; by default that of the run.
    json: bool = False  # Print JSON instead of a table.


@dataclass(frozen=True)
class VideoCommand:
    """Film the deterministic policy of a run folder or a policy file."""

    directory: tyro.conf.Positional[Path]  # Run folder or policy file.
    out: Path | None = None  # .gif or .mp4 file; by default video.gif in (or beside) it.
    episodes: int = 1  # Episodes to film.
    seed: int | None = None  # Seed of the episodes; by default that of the run.


@dataclass(frozen=True)
class ExportCommand:
    """Write the deterministic policy of a run folder or a policy file as an ONNX model."""

    directory: tyro.conf.Positional[Path]  # Run folder or policy file.
    out: Path | None = None  # By default policy.onnx in (or beside) it.


@dataclass(frozen=True)
class BenchCommand(Generic[C]):
    config: Annotated[C, tyro.conf.OmitArgPrefixes]
    repeats: int = 5  # The best repeat counts.
    steps_per_repeat: int = 1_000  # Environment steps, and bare updates, of each repeat.
    json: bool = False  # Print JSON instead of a table.


def parse(kind: Any, **arguments: Any) -> Any:
    """Parse flags; what a config refuses comes out as its own sentence instead of the parser's box."""
    unseen = io.StringIO()
    try:
        with redirect_stdout(unseen), redirect_stderr(unseen):
            return tyro.cli(kind, **arguments)
    except SystemExit as leaving:
        error: BaseException | None = leaving
        while error is not None:
            if isinstance(error, InputError):
                raise InputError(str(error)) from None
            error = error.__cause__ or error.__context__
    return tyro.cli(kind, **arguments)  # once more, for the parser's own words


def parse_with_config(command: Any, name: str, verb: str, env: str, arguments: list[str]) -> Any:
    """Parse a command that takes every hyperparameter: its defaults are those of the algorithm on the task."""
    algorithm, rest = _algorithm(arguments)
    preset = "none" if _peek(rest, "--preset") == "none" else "paper"
    given = {word.split("=")[0].lstrip("-").replace("-", "_") for word in rest if word.startswith("--")}
    default = configs.draft(algorithm, _peek(rest, "--env") or env, preset, given)
    entry = configs.ALGORITHMS[algorithm]
    return parse(
        command[type(default)],
        prog=f"implicitq {name} {algorithm}",
        description=f"{verb} {algorithm}: {entry.summary}. Other algorithms: {', '.join(configs.ALGORITHMS)}.",
        default=command(default),
        args=rest,
    )


def _algorithm(arguments: list[str]) -> tuple[str, list[str]]:
    """The optional name of the algorithm, wherever it stands, and the remaining arguments."""
    for number, word in enumerate(arguments):
        follows_flag = number > 0 and arguments[number - 1].startswith("-")
        if not word.startswith("-") and not follows_flag and (number == 0 or word in configs.ALGORITHMS):
            return word, [*arguments[:number], *arguments[number + 1 :]]
    return "miq", arguments


def _peek(arguments: list[str], flag: str) -> str | None:
    """The value of a flag, needed before parsing because the defaults depend on it."""
    for number, word in enumerate(arguments):
        if word == flag and number + 1 < len(arguments):
            return arguments[number + 1]
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None
