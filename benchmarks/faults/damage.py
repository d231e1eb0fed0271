"""Damaged files: every kind of file, every damage, every command that reads it."""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
from shared import ENV, Ended, Tally, differing, files_of, lasting_scratch, run, train_words

DAMAGES = ("flip", "cut", "zero", "delete", "folder", "link", "pipe")
_STEPS, _LONGER = 80, 120
SUITE = """tasks = ["{env}"]
algorithms = ["iq"]
[settings]
steps = {steps}
hidden = [8]
min_replay = 20
batch_size = 8
replay_size = 1000
bins = 3
eval_every = 40
eval_episodes = 1
checkpoint_every = 40
log_every = 20
"""
"""Small enough for a sweep in a few seconds."""


def corruption(tally: Tally, seed: int) -> None:
    """One damage to one file of a run folder, then a command that reads it: nothing silent, no traceback, no hang."""
    found = _server().run(seed)
    said = Ended(0, "", found.get("said", ""))
    tally.add(seed, found["fault"], found["outcome"], found.get("about", ""), said)


@functools.cache
def _server() -> processes.Cases:
    room = lasting_scratch()
    prepare(room)
    return processes.Cases(case, room)


def prepare(room: Path) -> None:
    """Whole folders, and what every command makes of them."""
    run(*train_words("iq", room / "whole/run", steps=_STEPS))
    (room / "tiny.toml").write_text(SUITE.format(env=ENV, steps=_STEPS))
    words = ["sweep", "--suite", room / "tiny.toml", "--seeds", 1, "--workers", 1, "--no-random-scores"]
    run(*words, "--out", room / "swept")
    good = {}
    for name, command in _COMMANDS.items():
        shutil.copytree(room / _source(name), room / f"good-{name}")
        done, results = command(room, room / f"good-{name}")
        if done.code or not results:
            raise SystemExit(f"{name} fails without any damage: {done.err}")
        good[name] = _digests(results)
    (room / "good.json").write_text(json.dumps(good))


def case(room: Path, seed: int) -> dict[str, Any]:
    """In the process of the cases."""
    good = json.loads((room / "good.json").read_text())
    chance = random.Random(seed)
    command, how = list(_COMMANDS)[seed % len(_COMMANDS)], chance.choice(DAMAGES)
    place, outside = room / f"case-{seed}", room / f"outside-{seed}"
    shutil.copytree(room / _source(command), place)
    outside.mkdir()
    folder = next(place.rglob("config.json")).parent
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    name = chance.choice([each for each in names if command in _READERS.get(each.split("/")[0], _ALL_FILES)])
    damage(folder / name, how, chance, outside)
    before = files_of(outside)
    done, results = _COMMANDS[command](room, place)
    apart = differing(good[command], _digests(results))
    outcome = done.outcome
    if outcome in ("done", "fallen back"):
        told = ("broken" in done.out and "0 broken" not in done.out) or "left out" in done.out or command == "sweep"
        outcome = ("detected" if told else "SILENT") if apart else "harmless" if outcome == "done" else outcome
    if files_of(outside) != before:
        outcome = "TOUCHED FILES OUTSIDE"
    for each in (place, outside):
        shutil.rmtree(each, ignore_errors=True)
    said = "\n".join((done.out + done.err).splitlines()[-12:])
    about = f"{command} after {how} of {name}; apart: {', '.join(apart)}"
    return {"fault": f"{how}, then {command}", "outcome": outcome, "about": about, "said": said}


def damage(path: Path, how: str, chance: random.Random, outside: Path) -> None:
    """One damage to one file; a link leads to a copy in `outside`, which nothing may touch."""
    content = path.read_bytes()
    if how in ("flip", "zero") and content:
        at = chance.randrange(len(content))
        length = 1 if how == "flip" else min(64, len(content) - at)
        new = bytes([content[at] ^ (1 << chance.randrange(8))]) if how == "flip" else bytes(length)
        path.write_bytes(content[:at] + new + content[at + length :])
    elif how == "cut":
        path.write_bytes(content[: chance.randrange(len(content))] if content else b"")
    elif how in ("delete", "folder", "link", "pipe"):
        path.unlink()
        if how == "folder":
            path.mkdir()
        if how == "link":
            (outside / path.name).write_bytes(content)
            path.symlink_to(outside / path.name)
        if how == "pipe":
            os.mkfifo(path)


def _digests(results: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in results.items()}


def _source(command: str) -> str:
    return "swept" if command == "sweep" else "whole"


def _resume(room: Path, case: Path) -> tuple[Ended, dict[str, bytes]]:
    done = processes.command("resume", case / "run", "--steps", _LONGER)
    apart = ("config.json", "versions.json")  # these are read, and written only where they change
    found = files_of(case / "run", apart) if done.code == 0 else {}
    return done, {name: content for name, content in found.items() if not name.endswith(".rejected")}


def _evaluate(room: Path, case: Path) -> tuple[Ended, dict[str, bytes]]:
    done = processes.command("evaluate", case / "run", "--episodes", 2, "--json")
    return done, {"answer": done.out.replace(str(case), "").encode()}


def _report(room: Path, case: Path) -> tuple[Ended, dict[str, bytes]]:
    done = processes.command("report", case)
    return done, {path.name: path.read_bytes() for path in (case / "report/tables").glob("*-returns.csv")}


def _collect(room: Path, case: Path) -> tuple[Ended, dict[str, bytes]]:
    done = processes.command("collect", case, case / "table")
    if done.code:
        return done, {}
    with open(case / "table/evaluations.csv", newline="") as file:  # without the clocks
        rows = "\n".join(",".join(row[:5]) for row in csv.reader(file)).encode()
    configs = json.dumps(json.loads((case / "table/about.json").read_text())["configs"]).encode()
    metrics = case / "table/metrics.csv"  # a damaged one is left out
    return done, {"rows": rows, "configs": configs, **({"metrics": metrics.read_bytes()} if metrics.exists() else {})}


def _sweep(room: Path, case: Path) -> tuple[Ended, dict[str, bytes]]:
    """Whether a sweep takes the run for finished, or would make it again."""
    words = ["sweep", "--suite", room / "tiny.toml", "--seeds", 1, "--dry-run", "--rate", 10]
    done = processes.command(*words, "--out", case)
    return done, {"answer": done.out.replace(str(case), "").encode()}


_COMMANDS: dict[str, Callable[[Path, Path], tuple[Ended, dict[str, bytes]]]] = {
    "resume": _resume,
    "evaluate": _evaluate,
    "report": _report,
    "collect": _collect,
    "sweep": _sweep,
}
_RUN_READERS = ("resume", "report", "collect", "sweep")
_ALL_FILES = ("resume",)
_READERS = {  # commands that read a file; resume reads all of them
    "policy.safetensors": ("resume", "evaluate"),
    **dict.fromkeys(("config.json", "evaluations.csv", "versions.json", "timing.csv", "checkpoints"), _RUN_READERS),
    "metrics.csv": ("resume", "collect"),
}
