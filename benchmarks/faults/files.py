"""Faults of files: damaged ones, and those that a stranger made."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared import Ended, Tally, differing, end, files_of, run, scratch, start, train_words

DAMAGES = ("flip", "cut", "zero", "delete", "folder", "link", "pipe")
_STEPS, _LONGER = 80, 160
_ROOM = {resource.RLIMIT_AS: 24 << 30, resource.RLIMIT_FSIZE: 64 << 20}  # JAX reserves addresses that it never fills
_BATCH = 20  # hostile cases of one process
_SECONDS_EACH = 30


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


def corruption(seeds: range) -> bool:
    """Every kind of file, every damage, every command that reads run folders: nothing silent, no traceback, no hang."""
    tally = Tally("corruption", "resume, evaluate, report, collect")
    with scratch() as room:
        whole = room / "whole/run"
        run(*train_words("iq", whole, steps=_STEPS))
        names = sorted(str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file())
        good = {}
        for command in _COMMANDS:
            shutil.copytree(room / "whole", room / f"good-{command}")
            good[command] = _COMMANDS[command](room / f"good-{command}")
            if good[command][0].code:
                raise SystemExit(f"{command} fails without any damage: {good[command][0].err}")
        for seed in seeds:
            chance = random.Random(seed)
            name, how = names[seed % len(names)], chance.choice(DAMAGES)
            command = chance.choice([each for each in _COMMANDS if each == "resume" or name in _READS[each]])
            case, outside = room / f"case-{seed}", room / f"outside-{seed}"
            shutil.copytree(room / "whole", case)
            outside.mkdir()
            damage(case / "run" / name, how, chance, outside)
            before = files_of(outside)
            done, results = _COMMANDS[command](case)
            apart = differing(good[command][1], results)
            outcome = done.outcome
            if outcome in ("done", "fallen back"):
                told = ("broken" in done.out and "0 broken" not in done.out) or "left out" in done.out
                outcome = ("detected" if told else "SILENT") if apart else "harmless" if outcome == "done" else outcome
            if files_of(outside) != before:
                outcome = "TOUCHED FILES OUTSIDE"
            tally.add(outcome, seed, f"{command} after {how} of {name}; apart: {', '.join(apart)}", done)
            shutil.rmtree(case, ignore_errors=True)
    return tally.write()


def _resume(case: Path) -> tuple[Ended, dict[str, bytes]]:
    done = run("resume", case / "run", "--steps", _LONGER, seconds=120)
    apart = ("config.json", "versions.json")  # these are read, and written only where they change
    found = files_of(case / "run", apart) if done.code == 0 else {}
    return done, {name: content for name, content in found.items() if not name.endswith(".rejected")}


def _evaluate(case: Path) -> tuple[Ended, dict[str, bytes]]:
    done = run("evaluate", case / "run", "--episodes", 2, "--json", seconds=120)
    return done, {"answer": done.out.replace(str(case), "").encode()}


def _report(case: Path) -> tuple[Ended, dict[str, bytes]]:
    done = run("report", case, seconds=120)
    return done, {path.name: path.read_bytes() for path in (case / "report/tables").glob("*-returns.csv")}


def _collect(case: Path) -> tuple[Ended, dict[str, bytes]]:
    done = run("collect", case, case / "table", seconds=120)
    if done.code:
        return done, {}
    with open(case / "table/evaluations.csv", newline="") as file:  # without the clocks
        return done, {"rows": "\n".join(",".join(row[:5]) for row in csv.reader(file)).encode()}


_COMMANDS: dict[str, Callable[[Path], tuple[Ended, dict[str, bytes]]]] = {
    "resume": _resume,
    "evaluate": _evaluate,
    "report": _report,
    "collect": _collect,
}


_READS = {  # besides resume, which reads everything
    "evaluate": ("policy.safetensors",),
    "report": ("config.json", "evaluations.csv", "versions.json", "timing.csv"),
    "collect": ("config.json", "evaluations.csv", "versions.json", "timing.csv", "metrics.csv"),
}


def hostile(seeds: range) -> bool:
    """Files that a stranger made, with right checksums: nothing but our own sentences, nothing outside touched.

    Many cases share a process, which calls the command line's own entry; one that dies is named by its seed.
    """
    tally = Tally("hostile files", "resume, evaluate, report, collect, sweep")
    with scratch() as room:
        run(*train_words("iq", room / "whole/run", steps=_STEPS))
        run("collect", room / "whole", room / "table")
        todo = list(seeds)
        while todo:
            batch = todo[:_BATCH]
            words = [room, *batch]
            done = end(start(*words, limits=_ROOM, module="files"), 60 + _SECONDS_EACH * len(batch))
            told = dict(line.split(" ", 1) for line in done.out.splitlines() if line[:1].isdecimal() and " " in line)
            for seed in batch:
                if str(seed) in told:
                    tally.add(told[str(seed)].split(";")[0], seed, told[str(seed)], done)
                    todo.remove(seed)
                    continue
                tally.add("DIED" if done.code is not None else "HANG", seed, "the process of this case", done)
                todo.remove(seed)
                break  # the rest of the batch begins anew
    return tally.write()


def _hostile_case(room: Path, seed: int) -> str:
    """Make the files, run the command, and tell what came of it."""
    import contextlib
    import io

    from implicitq.commands import main

    chance = random.Random(seed)
    case, canary = room / f"hostile-{seed}", room / f"canary-{seed}"
    canary.mkdir()
    (canary / "precious.txt").write_text("precious")
    shutil.copytree(room / "whole", case / "runs")
    shutil.copytree(room / "table", case / "table")
    kind = chance.choice(list(_TARGETS))
    words = _TARGETS[kind](case, chance, f"../canary-{seed}/precious.txt")
    said = io.StringIO()
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_SECONDS_EACH)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main.run([str(word) for word in words])
        outcome = "detected" if code else "harmless"
    except TimeoutError:
        outcome = "harmless" if "resuming" in said.getvalue() else "HANG"  # a file may ask for a long run
    except BaseException as error:
        outcome = f"{type(error).__name__} {str(error)[:150]!r}"
    signal.alarm(0)
    if "canary_module" in sys.modules:
        outcome = "IMPORTED"
    if files_of(canary) != {"precious.txt": b"precious"}:
        outcome = "TOUCHED FILES OUTSIDE"
    shutil.rmtree(case, ignore_errors=True)
    return f"{outcome}; {kind}: {' '.join(map(str, words[:1]))}"


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError


def mutated(data: Any, chance: random.Random, outside: str) -> Any:
    """The same data with one place changed to something that nobody expects there."""
    if isinstance(data, dict) and data and chance.random() < 0.85:
        key = chance.choice(list(data))
        fate = chance.random()
        if fate < 0.1:
            return {k: v for k, v in data.items() if k != key}
        if fate < 0.2:
            return {**data, str(_odd(chance, outside)) if chance.random() < 0.5 else outside: data[key]}
        return {**data, key: mutated(data[key], chance, outside)}
    if isinstance(data, list) and data and chance.random() < 0.85:
        at = chance.randrange(len(data))
        return [*data[:at], mutated(data[at], chance, outside), *data[at + 1 :]]
    return _odd(chance, outside)


def _odd(chance: random.Random, outside: str) -> Any:
    nested: Any = []
    for _ in range(chance.choice((2, 400))):
        nested = [nested]
    texts = [
        "",
        "..",
        "/etc/passwd",
        outside,
        "canary_module:X-v0",
        "=1+1",
        "$\\frac{$",
        "\ud800",
        "\0",
        "<b>",
        "x" * 5_000,
    ]
    numbers = [0, -1, True, 1.5, 10**18, 10**400, 1e308, float("nan"), float("inf"), None]
    value = chance.choice([*texts, *numbers, nested, {}, {"a": 1}, [10**9, 10**9]])
    return value if not isinstance(value, list | dict) or chance.random() < 0.9 else [value]


def _json(path: Path, chance: random.Random, outside: str, resign: bool = False) -> None:
    data = json.loads(path.read_text())
    if resign:
        data.pop("sha256", None)
    for _ in range(chance.choice((1, 1, 2, 4))):
        data = mutated(data, chance, outside)
    if resign and isinstance(data, dict):
        digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
        data = {**data, "sha256": digest}
    try:
        path.write_text(json.dumps(data))
    except (TypeError, UnicodeEncodeError):
        path.write_bytes(b"{")


def _manifest(case: Path, chance: random.Random, outside: str) -> list[Any]:
    for path in (case / "runs/run/checkpoints").glob("*.json"):
        _json(path, chance, outside, resign=True)
    return ["resume", case / "runs/run", "--steps", _LONGER]


def _config(case: Path, chance: random.Random, outside: str) -> list[Any]:
    _json(case / "runs/run/config.json", chance, outside)
    command = chance.choice(("resume", "report", "collect"))
    extra = {
        "resume": [case / "runs/run", "--steps", _LONGER],
        "report": [case / "runs"],
        "collect": [case / "runs", case / "out"],
    }
    return [command, *extra[command]]


def _policy(case: Path, chance: random.Random, outside: str) -> list[Any]:
    """The header of a safetensors file: a length in 8 bytes, JSON, then arrays; our own data are JSON within it."""
    path = case / "runs/run/policy.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, arrays = json.loads(content[8 : 8 + size]), content[8 + size :]
    if chance.random() < 0.7:
        told = mutated(json.loads(header["__metadata__"]["implicitq"]), chance, outside)
        header["__metadata__"]["implicitq"] = json.dumps(told)
    else:
        header = mutated(header, chance, outside)
    new = json.dumps(header).encode()
    length = len(new) if chance.random() < 0.9 else chance.choice((0, 2**40, 2**63))
    path.write_bytes(length.to_bytes(8, "little") + new + arrays)
    return ["evaluate", path, "--episodes", 1]


def _table(case: Path, chance: random.Random, outside: str) -> list[Any]:
    name = chance.choice(("configs.json", "versions.json", "evaluations.csv", "metrics.csv"))
    path = case / "table" / name
    if name.endswith(".json"):
        _json(path, chance, outside)
    else:
        rows = [line.split(",") for line in path.read_text().splitlines()]
        row = chance.choice(rows)
        row[chance.randrange(len(row))] = str(_odd(chance, outside))
        path.write_text("\n".join(map(",".join, rows)) + "\n", errors="replace")
    return chance.choice((["report", case / "table"], ["collect", case / "table", case / "out"]))


def _plan(case: Path, chance: random.Random, outside: str) -> list[Any]:
    plan = {
        "study": "main",
        "suite": "quick",
        "command": "implicitq sweep",
        "settings": {"Pendulum-v1": {"bins": 3}},
        "lines": {"iq": ["run"]},
        "left_out": [],
    }
    (case / "runs/plans").mkdir()
    (case / "runs/plans/main-quick.json").write_text(json.dumps(plan))
    _json(case / "runs/plans/main-quick.json", chance, outside)
    return ["report", case / "runs"] if chance.random() < 0.7 else ["collect", case / "runs", case / "out"]


def _suite(case: Path, chance: random.Random, outside: str) -> list[Any]:
    def text(value: Any) -> str:
        return "nan" if value is None else json.dumps(value)

    lines = {"name": "tiny", "tasks": ["Pendulum-v1"], "algorithms": ["iq"], "settings": {"steps": 50, "bins": 3}}
    data = mutated(lines, chance, outside)
    given = data.items() if isinstance(data, dict) else [("name", data)]
    simple = [f"{json.dumps(str(k))} = {text(v)}" for k, v in given if not isinstance(v, dict)]
    tables = [f"[{json.dumps(str(k))}]\n" + "\n".join(f"{json.dumps(str(n))} = {text(x)}" for n, x in v.items())
              for k, v in given if isinstance(v, dict)]  # fmt: skip
    (case / "suite.toml").write_text("\n".join([*simple, *tables]), errors="replace")
    return ["sweep", "--suite", case / "suite.toml", "--out", case / "out", "--dry-run", "--rate", "10", "--seeds", "1"]


_TARGETS = {
    "manifest": _manifest,
    "config": _config,
    "policy": _policy,
    "table": _table,
    "plan": _plan,
    "suite": _suite,
}

if __name__ == "__main__":  # the process of a batch of hostile cases
    for word in sys.argv[2:]:
        print(word, _hostile_case(Path(sys.argv[1]), int(word)), file=sys.__stdout__, flush=True)
