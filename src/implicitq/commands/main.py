"""The table of commands, and what they have in common: finding them, errors, exit codes. Needs no JAX."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import warnings
from collections.abc import Sequence

from implicitq import __version__
from implicitq.compilation import show_warning

# Name -> summary. The module of the same name is imported when its command is run, so that help is instant.
COMMANDS = {
    "train": "train an agent: implicitq train [ALGO] [--env ID] [--steps N] [--seed S] [--out DIR] ...",
    "resume": "go on with a stopped run: implicitq resume DIR [--steps N]",
    "evaluate": "play episodes with a trained policy: implicitq evaluate DIR [--episodes N] [--json]",
    "video": "film a trained policy: implicitq video DIR [--out FILE]",
    "export": "write a trained policy as an ONNX model: implicitq export DIR [--out FILE]",
    "push": "share a trained policy on the Hugging Face Hub: implicitq push DIR REPO [--best] [--private]",
    "card": "write the model card of a run: implicitq card DIR [--out FILE]",
    "plot": "draw what runs did over time: implicitq plot DIR... [--out FILE]",
    "tune": "search for good hyperparameters: implicitq tune [ALGO] [--env ID] --out DIR [--trials N]",
    "sweep": "run a study of the paper: implicitq sweep --study NAME --suite NAME --out DIR [--dry-run]",
    "report": "figures, tables and a page from run folders: implicitq report DIR",
    "collect": "keep runs as a few small files: implicitq collect DIR OUT [--suite NAME]",
    "random-scores": "measure the random policy, the zero of scores: implicitq random-scores DIR",
    "theory": "run the paper's theorems on finite MDPs: implicitq theory [--mdp NAME ...] [--quick]",
    "doctor": "what works here, and what to do about what is missing: implicitq doctor [--json]",
    "bench": "measure training speed: implicitq bench [ALGO] [--env ID] [--any-hyperparameter VALUE]",
}


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; gives the exit code. Only what the command needs is imported, for a fast start."""
    warnings.showwarning = show_warning
    name, *rest = arguments or ["--help"]
    try:
        if name == "--version":
            print(f"implicitq {__version__}", flush=True)
            return 0
        if name in ("-h", "--help", "help"):
            print(_usage(), flush=True)
            return 0
        return _command(name, rest)
    except BrokenPipeError:  # whoever read the output has seen enough, as with: implicitq --help | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or flushing at exit would complain again
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _command(name: str, rest: list[str]) -> int:
    from implicitq.types import InputError
    from implicitq.validation import nearest, sentence

    if name not in COMMANDS:
        return _fail(f"unknown command {name!r}{nearest(name, COMMANDS)}")
    try:
        return importlib.import_module(f"implicitq.commands.{name.replace('-', '_')}").run(rest)
    except BrokenPipeError:
        raise
    except (InputError, OSError) as error:  # OSError: of the disk, such as no room or no right
        return _fail(sentence(error))
    except SystemExit as leaving:  # of the parser, after help or its own words about a flag
        return leaving.code if isinstance(leaving.code, int) else 1


def _usage() -> str:
    from implicitq import configs

    commands = [f"  {name:<14}{summary}" for name, summary in COMMANDS.items()]
    algorithms = [f"  {name:<14}{entry.summary}" for name, entry in configs.ALGORITHMS.items()]
    return "\n".join(
        [
            "implicitq: reinforcement learning with implicit Q-values, Q = temperature * ln pi + V",
            "",
            "commands (each has --help):",
            *commands,
            "",
            "algorithms:",
            *algorithms,
            "",
            "start with: implicitq train",
        ]
    )


def _fail(message: str) -> int:
    from implicitq.commands.display import error_console

    error_console.print(f"error: {message}")
    return 2


if __name__ == "__main__":
    main()
