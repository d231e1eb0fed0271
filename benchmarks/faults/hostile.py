"""Files that a stranger made, with right checksums: nothing but our own sentences, and nothing outside is touched."""

from __future__ import annotations

import functools
import hashlib
import json
import random
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import processes
import safetensors
import safetensors.numpy
from shared import Ended, Tally, files_of, lasting_scratch, run, train_words

_STEPS, _LONGER = 80, 160
_SECONDS = 60
_MEGABYTES = 1_500  # that a process may have used at most, with all cases before it; it starts with about 500
_CANARY = "import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n"
_PRECIOUS = ("precious.txt", "000000040.json", "000000080.safetensors", "000000040-0000.safetensors")


def hostile(tally: Tally, seed: int) -> None:
    """A folder or file with odd things in it, then a command that reads it: a sentence, or no harm."""
    found = _server().run(seed)
    tally.add(seed, found["fault"], found["outcome"], found.get("about", ""), Ended(0, "", found.get("said", "")))


@functools.cache
def _server() -> processes.Cases:
    room = lasting_scratch()
    prepare(room)
    return processes.Cases(case, room, str(room / "path"))


def prepare(room: Path) -> None:
    run(*train_words("iq", room / "whole/run", steps=_STEPS))
    run("collect", room / "whole", room / "table")
    (room / "path").mkdir()
    (room / "path/canary_module.py").write_text(_CANARY)  # which any import would find


def case(room: Path, seed: int) -> dict[str, Any]:
    """In the process of the cases: make the files, run the command, and tell what came of it."""
    chance = random.Random(seed)
    place = room / f"hostile-{seed}"
    shutil.copytree(room / "whole", place / "runs")
    shutil.copytree(room / "table", place / "table")
    for level in (place / "runs", place):  # one and two folders above the run, as above a report and a plan
        (level / "canary").mkdir()
        for name in _PRECIOUS:
            (level / "canary" / name).write_text("precious")
    outside = chance.choice(("../canary/", "../../canary/", f"{place}/canary/")) + chance.choice(_PRECIOUS)
    kind = list(_TARGETS)[seed % len(_TARGETS)]
    words, may_write = _TARGETS[kind](place, chance, outside)
    before = files_of(place)
    done = processes.command(*words, seconds=_SECONDS)
    outcome = {"done": "harmless", "fallen back": "fallen back"}.get(done.outcome, done.outcome)
    if outcome == "HANG" and "resuming" in done.out:
        outcome = "harmless"  # a file may ask for a long run
    after = files_of(place)
    touched = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    if any(not name.startswith(may_write) for name in touched):
        outcome = "TOUCHED FILES OUTSIDE"
    if "canary_module" in sys.modules or (room / "path/imported").exists():
        outcome = "IMPORTED"
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > _MEGABYTES * 1024:
        outcome = "TOOK MEMORY"
    shutil.rmtree(place, ignore_errors=True)
    said = "\n".join((done.out + done.err).splitlines()[-12:])
    return {"fault": kind, "outcome": outcome, "about": f"{words[0]}; {touched}", "said": said}


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
    texts = ["", "..", "/etc/passwd", outside, "canary_module:X-v0", "=1+1", "$\\frac{$", "\ud800", "\0", "<b>"]
    numbers = [0, -1, True, 1.5, 10**18, 10**400, 1e308, float("nan"), float("inf"), None, 2, 1e-300]
    return chance.choice([*texts, "x" * 5_000, *numbers, nested, {}, {"a": 1}, [10**9, 10**9]])


def _sealed(data: Any) -> Any:
    """With a checksum that fits, as a manifest has it."""
    if not isinstance(data, dict):
        return data
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    return {**data, "sha256": digest}


def _write_json(path: Path, data: Any, chance: random.Random) -> None:
    text = json.dumps(data)
    if chance.random() < 0.03:  # deeper than anything can be parsed
        text = "[" * 200_000 + text
    path.write_text(text)


def _change_json(path: Path, chance: random.Random, outside: str, seal: bool = False) -> None:
    data = json.loads(path.read_text())
    if seal:
        data.pop("sha256", None)
    for _ in range(chance.choice((1, 1, 2, 4))):
        data = mutated(data, chance, outside)
    _write_json(path, _sealed(data) if seal else data, chance)


Made = tuple[list[Any], tuple[str, ...]]  # a command, and where it may write: beginnings of paths


def _resume(place: Path) -> Made:
    return ["resume", place / "runs/run", "--steps", _LONGER], ("runs/run/",)


def _report(folder: Path) -> Made:
    return ["report", folder], (f"{folder.name}/report/",)


def _collect(folder: Path) -> Made:
    return ["collect", folder, folder.parent / "out"], ("out/",)


def _manifest(place: Path, chance: random.Random, outside: str) -> Made:
    for path in (place / "runs/run/checkpoints").glob("*.json"):
        _change_json(path, chance, outside, seal=True)
    return _resume(place)


def _arrays(place: Path, chance: random.Random, outside: str) -> Made:
    """Arrays of all checkpoints or of all segments, with manifests that know them."""
    folder = place / "runs/run" / chance.choice(("checkpoints", "replay"))
    digests = {}
    for path in folder.glob("*.safetensors"):
        then = hashlib.sha256(path.read_bytes()).hexdigest()
        with safetensors.safe_open(path, framework="numpy") as file:
            header, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        name = chance.choice([each for each in arrays if not each.startswith("learner")] or list(arrays))
        arrays[name] = _odd_array(arrays[name], chance)
        if chance.random() < 0.1:
            del arrays[name]
        if chance.random() < 0.2:
            header = chance.choice(({}, {"implicitq": "[" * 200_000}, {"implicitq": "3"}))
        path.write_bytes(safetensors.numpy.save(arrays, header))
        digests[then] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in (place / "runs/run/checkpoints").glob("*.json"):
        text = path.read_text()
        for then, now in digests.items():
            text = text.replace(then, now)
        data = json.loads(text)
        del data["sha256"]
        path.write_text(json.dumps(_sealed(data)))
    return _resume(place)


def _odd_array(array: np.ndarray, chance: random.Random) -> np.ndarray:
    match chance.randrange(5):
        case 0:
            return array.astype(chance.choice(("float16", "float64", "int64", "uint8", "bool")))
        case 1:
            return array[:0]
        case 2:
            return np.concatenate([array, array])
        case 3:
            return np.zeros((2, *array.shape), array.dtype)
    extreme = chance.choice((np.inf, np.nan)) if array.dtype.kind == "f" else chance.choice((-1, 0, 2**62))
    return np.full_like(array, np.array(extreme).astype(array.dtype))


def _config(place: Path, chance: random.Random, outside: str) -> Made:
    _change_json(place / "runs/run/config.json", chance, outside)
    if chance.random() < 0.5:  # a run that has not got far, so that no checkpoint contradicts
        shutil.rmtree(place / "runs/run/checkpoints")
        (place / "runs/run/policy.safetensors").unlink()
    return chance.choice((_resume(place), _report(place / "runs"), _collect(place / "runs")))


def _policy(place: Path, chance: random.Random, outside: str) -> Made:
    """The header of a safetensors file: a length in 8 bytes, JSON, then arrays; our own data are JSON within it."""
    path = place / "runs/run/policy.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, arrays = json.loads(content[8 : 8 + size]), content[8 + size :]
    if chance.random() < 0.7:
        told = mutated(json.loads(header["__metadata__"]["implicitq"]), chance, outside)
        if isinstance(told, dict) and chance.random() < 0.5:
            told["format"] = 1  # which had no digest
        header["__metadata__"]["implicitq"] = json.dumps(told) if chance.random() < 0.95 else "[" * 200_000
    else:
        header = mutated(header, chance, outside)
    new = json.dumps(header).encode()
    length = len(new) if chance.random() < 0.9 else chance.choice((0, 2**40, 2**63))
    path.write_bytes(length.to_bytes(8, "little") + new + arrays)
    if chance.random() < 0.1:
        return ["video", path.parent], ("runs/run/video.gif",)
    return ["evaluate", path, "--episodes", 1], ("nowhere",)


def _table(place: Path, chance: random.Random, outside: str) -> Made:
    name = chance.choice(("about.json", "about.json", "evaluations.csv", "metrics.csv", "random-scores.json"))
    path = place / "table" / name
    if name == "random-scores.json":
        scores = {"mean": -1200.0, "std": 3.0, "episodes": 100, "seed": 0, "versions": {"gymnasium": "1.0"}}
        path.write_text(json.dumps({"Pendulum-v1": scores}))
    if name.endswith(".json"):
        _change_json(path, chance, outside)
    else:
        rows = [line.split(",") for line in path.read_text().splitlines()]
        row = chance.choice(rows)
        row[chance.randrange(len(row))] = str(_odd(chance, outside))
        path.write_text("\n".join(map(",".join, rows)) + "\n", errors="replace")
    return chance.choice((_report(place / "table"), _collect(place / "table")))


def _plan(place: Path, chance: random.Random, outside: str) -> Made:
    plan = {
        "study": "main",
        "suite": "quick",
        "command": "implicitq sweep",
        "settings": {"Pendulum-v1": {"bins": 3}},
        "lines": {"iq": ["run"]},
        "left_out": [],
    }
    (place / "runs/plans").mkdir()
    (place / "runs/plans/main-quick.json").write_text(json.dumps(plan))
    _change_json(place / "runs/plans/main-quick.json", chance, outside)
    return _report(place / "runs") if chance.random() < 0.7 else _collect(place / "runs")


def _suite(place: Path, chance: random.Random, outside: str) -> Made:
    def text(value: Any) -> str:
        return "nan" if value is None else json.dumps(value)

    lines = {
        "name": "tiny",
        "tasks": ["Pendulum-v1"],
        "algorithms": ["iq"],
        "settings": {"steps": 50, "bins": 3},
        "task_settings": [],
    }
    data = mutated({key: lines[key] for key in chance.sample(list(lines), chance.choice((4, 5)))}, chance, outside)
    given = data.items() if isinstance(data, dict) else [("name", data)]
    simple = [f"{json.dumps(str(k))} = {text(v)}" for k, v in given if not isinstance(v, dict)]
    tables = [
        "\n".join([f"[{json.dumps(str(key))}]", *(f"{json.dumps(str(name))} = {text(x)}" for name, x in value.items())])
        for key, value in given
        if isinstance(value, dict)
    ]
    (place / "suite.toml").write_text("\n".join([*simple, *tables]), errors="replace")
    words = ["sweep", "--suite", place / "suite.toml", "--out", place / "out", "--dry-run", "--rate", "10"]
    return [*words, "--seeds", "1"], ("out/",)


_TARGETS: dict[str, Callable[[Path, random.Random, str], Made]] = {
    "manifest": _manifest,
    "arrays": _arrays,
    "config": _config,
    "policy": _policy,
    "table": _table,
    "plan": _plan,
    "suite": _suite,
}
