"""How flags are read. Needs no JAX."""

from __future__ import annotations

import dataclasses
import difflib
import io
import itertools
import os
import re
import sys
from collections.abc import Collection
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from implicitq import configs
from implicitq.compilation import VARIABLE
from implicitq.configs import fields
from implicitq.configs.preset_files import is_path
from implicitq.runs.hub import is_address
from implicitq.sweeps.suites import SUITES
from implicitq.types import InputError
from implicitq.validation import ALIASES, module_of

fields.HIDDEN, fields.FLAG = tyro.conf.Suppress, tyro.conf.arg

O = TypeVar("O")  # noqa: E741 - options of a command
C = TypeVar("C", bound=configs.Config)

Hyperparameters = Annotated[C, tyro.conf.OmitArgPrefixes]
"""A flag of its own for every field of a config."""

Folder = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
PolicySource = Annotated[
    tyro.conf.Positional[str],
    tyro.conf.arg(
        metavar="DIR|FILE|hf://REPO",
        help="Run folder, policy file, or policy on the Hugging Face Hub (hf://owner/name).",
    ),
]
_SUITES = "; ".join(f"{suite.name}: {suite.summary}" for suite in SUITES.values())
TrustSuite = Annotated[
    bool,
    tyro.conf.arg(help="Make the tasks that a suite's file names, even if their ids (module:Id) import Python code."),
]
SuiteName = Annotated[str, tyro.conf.arg(help=f"{_SUITES}; or the path of a .toml file of your own.")]


def default(text: str, metavar: str) -> Any:
    """Help of a flag whose default is None: `text` says what None means."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {text})")


EnvironmentName = Annotated[str | None, default("the one that the file names", "ID")]
TrustFile = Annotated[
    bool,
    tyro.conf.arg(help="Make the environment that the file names, even if its id (module:Id) imports Python code."),
]
BestPolicy = Annotated[
    bool, tyro.conf.arg(help="Take the policy of the run's best evaluation, instead of that of its last checkpoint.")
]
Track = Annotated[
    tuple[str, ...] | None,
    tyro.conf.arg(
        metavar="NAME ...",
        help="Log to tensorboard, wandb or both: the numbers of metrics.csv and evaluations.csv, in files below the "
        "run folder. none: to neither.",
        help_behavior_hint="(default: none, or as the run had it before)",
    ),
]
Cache = Annotated[
    bool,
    tyro.conf.arg(
        help="Keep compiled functions in the user's cache folder, for a faster start next time; changes no result. "
        f"{VARIABLE}=off in the environment is the same as --no-cache, and {VARIABLE}=DIR is another folder."
    ),
]
Device = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="NAME",
        help="Where networks learn and act: gpu, cuda:1, cpu, or another device of JAX.",
        help_behavior_hint="(default: an accelerator, if JAX was installed for one, else the processor)",
    ),
]
EpisodeSeed = Annotated[int | None, default("that of the run", "INT")]


_RULES = tyro.constructors.ConstructorRegistry()


@_RULES.primitive_rule
def _whole_numbers(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    """1e6 is a whole number too, as in Python and in files."""
    if info.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: _whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def _whole_number(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        number = float(word)
        if not number.is_integer():
            raise
        return int(number)


def parse(options: type[O], command: str, arguments: list[str], known: Collection[str] = (), **more: Any) -> O:
    """Parse the flags of a command. What cannot be parsed is an InputError, a sentence without the parser's box.

    `known` are names of further flags that the command takes, for a guess at what was meant.
    """
    more = {"prog": f"implicitq {command}", "args": arguments, "registry": _RULES, **more}
    unseen = io.StringIO()
    try:
        with redirect_stdout(unseen), redirect_stderr(unseen):
            found = tyro.cli(options, **more)
        _refuse_empty(arguments, found)
        return found
    except SystemExit as leaving:
        error: BaseException | None = leaving
        while error is not None:
            if isinstance(error, InputError):
                raise InputError(str(error)) from None
            error = error.__cause__ or error.__context__
        if leaving.code:
            _refuse_aliases(arguments)
            _refuse_values_of_switches(arguments, unseen.getvalue())
            _refuse_values(arguments, unseen.getvalue())
            _refuse_missing(command, unseen.getvalue())
            _refuse_unknown(arguments, unseen.getvalue(), command, {*_flags(options, **more), *map(_flag, known)})
    return tyro.cli(options, **more)  # once more, for the parser's own words


def _refuse_aliases(arguments: list[str]) -> None:
    """A sentence about a flag that has another name here; none of these names is one of ours."""
    for word in arguments:
        alias = word.split("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and alias in ("algo", "algorithm"):
            raise InputError(f"unknown flag {word.split('=')[0]}: the algorithm has none, as in implicitq train sac")
        if word.startswith("--") and alias in ALIASES:
            ours = " or ".join(map(_flag, ALIASES[alias]))
            raise InputError(f"unknown flag {word.split('=')[0]}; did you mean {ours}?")


def _refuse_values_of_switches(arguments: list[str], said: str) -> None:
    """A sentence about `--switch False`, of which the parser says only that it does not know the word False."""
    for flag, value in itertools.pairwise(part for word in arguments for part in word.split("=", 1)):
        unknown = "Unrecognized options" in said and flag not in said
        if unknown and flag.startswith("--") and value.lower() in ("true", "false"):
            name = flag.removeprefix("--").removeprefix("no-")
            raise InputError(f"{flag} takes no value, got {value!r}: --{name} turns it on, --no-{name} off")


_KINDS = {
    "INT": "a whole number",
    "FLOAT": "a number",
    "INT ...": "whole numbers with spaces between them",
    "[INT [INT ...]]": "whole numbers with spaces between them",
}


def _refuse_values(arguments: list[str], said: str) -> None:
    """A sentence about a value that its flag does not take, of which the parser tells the types of Python."""
    text = " ".join(line.strip() for line in said.splitlines())
    if missing := re.search(r"Missing value for argument '(--[\w-]+)'", text):
        raise InputError(f"{missing[1]} needs a value")
    if chosen := re.search(r"invalid choice .* for argument '(--[\w-]+)'\. Expected one of \((.*?)\)", text):
        flag, kinds = chosen[1], chosen[2].replace("'", "").strip(",").split(", ")
    elif failed := re.search(r"Error parsing (--[\w-]+).*^\s+\1 (\S.*?)\s*$", said, re.DOTALL | re.MULTILINE):
        flag, kinds = failed[1], [_KINDS.get(name, name) for name in re.sub("[{}]", "", failed[2]).split("|")]
    else:
        return
    raise InputError(f"{flag} takes {' or '.join(kinds)}, got {' '.join(_values(arguments, flag))!r}")


def _refuse_empty(arguments: list[str], found: Any) -> None:
    """A sentence about a flag of several values without any, such as `--hidden`: that is a slip."""
    for flag in (word for word in arguments if word.startswith("--")):
        name = flag.removeprefix("--").replace("-", "_")
        if getattr(found, name, getattr(getattr(found, "config", None), name, None)) == ():
            raise InputError(f"{flag} needs a value")


def _refuse_missing(command: str, said: str) -> None:
    """A sentence about what has no default and was not given."""
    if f"Missing from implicitq {command}:" in said:
        told = said.split("Missing from", 1)[1].split("For full helptext")[0]
        names = re.findall(r"^ {4,6}(\S.*?)\s*$", told, re.MULTILINE)
        raise InputError(f"implicitq {command} needs {' and '.join(names)}; implicitq {command} --help says more")


def _values(arguments: list[str], flag: str) -> list[str]:
    """The words after a flag, up to the next one."""
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--") else [word])]
    after = words[words.index(flag) + 1 :] if flag in words else []
    return list(itertools.takewhile(lambda word: not word.startswith("--"), after))


def _refuse_unknown(arguments: list[str], said: str, command: str, flags: set[str]) -> None:
    """A sentence about a flag or a word that the command does not know."""
    unknown = re.search(r"Unrecognized options: (.*?)\s*$", said, re.MULTILINE)
    if unknown is None:
        return
    for word in (word.split("=")[0] for word in arguments):
        name = word.replace("_", "-").replace("--no-", "--", 1)
        if word.startswith("--") and name not in flags:
            near = sorted(flag for flag in flags if flag.startswith(name)) or difflib.get_close_matches(name, flags, 1)
            hint = f"did you mean {near[0]}?" if near else f"implicitq {command} --help shows all"
            raise InputError(f"unknown flag {word}; {hint}")
    for flag in (word for word in arguments if word.startswith("--")):
        if len(_values(arguments, flag)) > 1 and unknown[1].split(",")[0] in _values(arguments, flag):
            raise InputError(f"{flag} takes one value, got {' '.join(_values(arguments, flag))!r}")
    raise InputError(f"{unknown[1]!r} is too much; implicitq {command} --help shows what the command takes")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _flags(options: Any, **more: Any) -> set[str]:
    """All flags of a command, as its help has them: at the beginnings of lines."""
    shown = io.StringIO()
    with redirect_stdout(shown), suppress(SystemExit):
        tyro.cli(options, **{**more, "args": ["--help"]})
    return set(re.findall(r"^\W*(--[a-z][a-z0-9-]*)", shown.getvalue(), re.MULTILINE))


def parse_with_config(options: Any, command: str, verb: str, env: str, arguments: list[str]) -> Any:
    """Parse a command that takes every hyperparameter: its defaults are those of the algorithm on the task."""
    algorithm, rest = split_algorithm(arguments)
    find_modules_here(_peek(rest, "--env"))
    preset = _peek(rest, "--preset") or "paper"
    given = {name: _peek(rest, _flag(name)) for name in given_names(rest)}
    config = configs.draft(algorithm, _peek(rest, "--env") or env, preset, given)
    if is_path(preset):  # its values are in the config now, and so is that they are of a file
        pairs = zip(rest, ["", *rest[:-1]], strict=True)
        known = [config.preset if before == "--preset" else word for word, before in pairs]
        rest = [word for word in known if not word.startswith("--preset=")]
    others = ", ".join(name for name in configs.ALGORITHMS if name != algorithm)
    return parse(
        options[type(config)],
        f"{command} {algorithm}",
        rest,
        description=f"{verb} {algorithm}: {configs.entry_of(algorithm).summary}. Other algorithms: {others}.",
        default=options(config),
    )


def given_names(arguments: list[str]) -> set[str]:
    """Names of the flags among these words."""
    words = (word.split("=")[0] for word in arguments if word.startswith("--"))
    return {word.removeprefix("--").replace("-", "_").removeprefix("no_") for word in words}


def hyperparameters() -> set[str]:
    """The names of all hyperparameters of all algorithms."""
    entries = {entry.config for entry in configs.ALGORITHMS.values()}
    return {field.name for config in entries for field in dataclasses.fields(config)}


def split_hyperparameters(arguments: list[str], but: Collection[str]) -> tuple[list[str], list[str]]:
    """Two lists of words: flags of hyperparameters with their values, except names in `but`; and all others."""
    known = hyperparameters() - set(but)
    own: list[str] = []
    rest: list[str] = []
    mine, values = False, 0  # whose the last flag was, and how many values it has: one, or several numbers
    for word in arguments:
        if word.startswith("--"):
            name = word.split("=")[0].removeprefix("--").replace("-", "_")
            mine, values = name in known or name.removeprefix("no_") in known, int("=" in word)
        else:
            mine = mine and (not values or word.isdecimal())
            values += 1
        (own if mine else rest).append(word)
    return own, rest


def parse_changes(config: configs.Config, arguments: list[str]) -> dict[str, Any]:
    """The hyperparameters that these flags of `implicitq resume` set to something else than the config has."""
    parsed = parse(type(config), "resume", arguments, default=config)
    names = [field.name for field in dataclasses.fields(config)]
    return {name: getattr(parsed, name) for name in names if getattr(parsed, name) != getattr(config, name)}


def split_algorithm(arguments: list[str]) -> tuple[str, list[str]]:
    """The optional name of the algorithm, wherever it stands, and the remaining arguments."""
    for number, word in enumerate(arguments):
        follows_flag = number > 0 and arguments[number - 1].startswith("-")
        if not word.startswith("-") and not follows_flag and (number == 0 or word in configs.KNOWN):
            return word, [*arguments[:number], *arguments[number + 1 :]]
    return "iq-auto", arguments


def find_modules_here(*names: str | None) -> None:
    """Let an id such as `module:Id` that the user has typed import a module from the working folder.

    As `python -m` does. Never for an id that comes from a file: the folder may be that of a stranger too.
    """
    if any(module_of(name) for name in names if name is not None) and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def beside(source: str, name: str) -> Path:
    """Where a file that is made from a policy goes by default: into its run folder, beside its file, or here."""
    if is_address(source):
        return Path(name)
    return (Path(source) if Path(source).is_dir() else Path(source).parent) / name


def _peek(arguments: list[str], flag: str) -> str | None:
    """The value of a flag, needed before parsing because the defaults depend on it."""
    after = None
    for word in reversed(arguments):  # of several the last counts, as for the parser
        if word == flag:
            return after
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
        after = word
    return None
