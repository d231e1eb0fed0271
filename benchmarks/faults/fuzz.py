"""The parsers, fed by a fuzzer that sees which lines it reaches: atheris, which has to be installed for this part.

`python fuzz.py PARSER ROOM SEED` is the process of a session. Anything but our own error ends it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from shared import Tally, end, lasting_scratch, run, start, train_words

_SECONDS = 30  # of a session
_OPTIONS = ("-max_len=6000", "-timeout=20", "-rss_limit_mb=2500", "-verbosity=0", "-print_final_stats=1")
_EXECUTIONS = "stat::number_of_executed_units:"


def fuzz(tally: Tally, seed: int) -> None:
    """Whatever bytes a file has, its parser gives data or our own error: sessions of half a minute, by turns."""
    if importlib.util.find_spec("atheris") is None:
        raise SystemExit("this part needs the package atheris, which is not installed")
    parser = list(PARSERS)[seed % len(PARSERS)]
    done = end(start(parser, _room(), seed, module="fuzz"), 20 * _SECONDS)
    found = [line for line in done.err.splitlines() if line.startswith(_EXECUTIONS)]
    count = int(found[0].removeprefix(_EXECUTIONS)) if found else 1
    good = done.code == 0 and found
    tally.add(seed, f"bytes for {parser}", "harmless" if good else "OTHER ERROR", "", done, count)


@functools.cache
def _room() -> Path:
    """Whole files, from which the fuzzer starts."""
    room = lasting_scratch()
    run(*train_words("iq", room / "runs/run", steps=80))
    run("collect", room / "runs", room / "table")
    whole = room / "runs/run"
    manifest = json.loads(next((whole / "checkpoints").glob("*.json")).read_text())
    del manifest["sha256"]
    policy = (whole / "policy.safetensors").read_bytes()
    header = json.loads(policy[8 : 8 + int.from_bytes(policy[:8], "little")])
    ours = json.loads(header["__metadata__"]["implicitq"])
    seeds = {
        "config.json": (whole / "config.json").read_bytes(),
        "a manifest": json.dumps(manifest).encode(),
        "a policy file": policy,
        "a policy's header": json.dumps({**ours, "format": 1}).encode(),
        "evaluations.csv": (whole / "evaluations.csv").read_bytes(),
        "timing.csv": (whole / "timing.csv").read_bytes(),
        "a table's evaluations.csv": (room / "table/evaluations.csv").read_bytes(),
        "a table's about.json": (room / "table/about.json").read_bytes(),
        "a plan": b'{"study": "a", "suite": "b", "command": "c", "lines": {"iq": ["r"]}, "left_out": []}',
        "a suite": b'tasks = ["Pendulum-v1"]\n[settings]\nsteps = 50\n[task_settings.Pendulum-v1]\nbins = 3\n',
        "random-scores.json": b'{"Pendulum-v1": {"mean": -1.0, "std": 1.0, "episodes": 1, "versions": {}}}',
    }
    for parser, content in seeds.items():
        (room / "corpus" / parser).mkdir(parents=True)
        (room / "corpus" / parser / "whole").write_bytes(content)
    return room


def _config(room: Path, data: bytes) -> None:
    from implicitq.runs import files, settings

    try:
        told = files.parse_json(data)
    except ValueError:
        return
    settings.from_file(told, "config.json", 10)


def _manifest(room: Path, data: bytes) -> None:
    """With a checksum that fits, or nothing behind it would ever be reached."""
    from implicitq.runs import layout, manifests

    with contextlib.suppress(ValueError, RecursionError):
        told = json.loads(data)
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
        data = json.dumps({**told, "sha256": digest}).encode() if isinstance(told, dict) else data
    path = room / "000000040.json"
    path.write_bytes(data)
    manifests.read(path, layout.LOGS)


def _policy(room: Path, data: bytes) -> None:
    from implicitq.runs import policy_file

    (room / "policy").write_bytes(data)
    policy_file.read(room / "policy")


def _header(room: Path, data: bytes) -> None:
    """Our own part of a policy file, in front of arrays that are whole."""
    whole = (room / "whole").read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    header["__metadata__"]["implicitq"] = data.decode(errors="replace")
    new = json.dumps(header).encode()
    _policy(room, len(new).to_bytes(8, "little") + new + whole[8 + size :])


def _evaluations(room: Path, data: bytes) -> None:
    from implicitq.runs import layout

    (room / layout.EVALUATIONS).write_bytes(data)
    layout.read_curve(room)
    layout.read_evaluations(room)


def _timing(room: Path, data: bytes) -> None:
    import numpy as np

    from implicitq.runs import layout, logs

    logs.read_clocks(data)
    (room / layout.TIMING).write_bytes(data)
    layout.read_seconds(room, np.array([40, 80]))
    layout.progress_of(room)


def _table(name: str, room: Path, data: bytes) -> None:
    from implicitq.runs import study_table

    (room / "table" / name).write_bytes(data)
    study_table.read_table(room / "table")


def _plan(room: Path, data: bytes) -> None:
    from implicitq.sweeps import sweep

    (room / "plans").mkdir(exist_ok=True)
    (room / "plans/a-b.json").write_bytes(data)
    sweep.read_plans(room)


def _suite(room: Path, data: bytes) -> None:
    from implicitq.sweeps import suites

    (room / "suite.toml").write_bytes(data)
    suites.suite_of(str(room / "suite.toml"))


def _scores(room: Path, data: bytes) -> None:
    from implicitq.sweeps import random_scores

    (room / random_scores.FILE).write_bytes(data)
    random_scores.read(room)


PARSERS: dict[str, Callable[[Path, bytes], None]] = {
    "config.json": _config,
    "a manifest": _manifest,
    "a policy file": _policy,
    "a policy's header": _header,
    "evaluations.csv": _evaluations,
    "timing.csv": _timing,
    "a table's evaluations.csv": functools.partial(_table, "evaluations.csv"),
    "a table's about.json": functools.partial(_table, "about.json"),
    "a plan": _plan,
    "a suite": _suite,
    "random-scores.json": _scores,
}


def _session(parser: str, room: Path, seed: str) -> None:
    import atheris  # pyright: ignore[reportMissingImports]

    with atheris.instrument_imports(include=["implicitq"]):
        importlib.import_module("implicitq.sweeps.collecting")
        importlib.import_module("implicitq.runs.policy_file")
    from implicitq.types import InputError

    own = room / f"session-{seed}"
    shutil.copytree(room / "corpus" / parser, own / "corpus")
    shutil.copytree(room / "table", own / "table")
    shutil.copy(room / "runs/run/policy.safetensors", own / "whole")

    def one(data: bytes) -> None:
        with contextlib.suppress(InputError):
            PARSERS[parser](own, data)

    options = [*_OPTIONS, f"-seed={int(seed) + 1}", f"-max_total_time={_SECONDS}", f"-artifact_prefix={own}/"]
    atheris.Setup([sys.argv[0], *options, str(own / "corpus")], one)
    atheris.Fuzz()


if __name__ == "__main__":
    _session(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
