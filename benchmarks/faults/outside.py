"""Faults from outside of a run: simulators that misbehave, sweeps that lose processes."""

from __future__ import annotations

import csv
import functools
import os
import random
import signal
import subprocess
import time
from pathlib import Path

from damage import SUITE
from shared import ENV, Tally, differing, end, files_of, run, scratch, start, train_words
from simulators import FAULTS, env_id

_CASES = [
    *((fault, how, "stop") for fault in FAULTS for how in ("sync", "async")),
    *((fault, how, "restart") for fault in ("raises", "reset", "shape") for how in ("sync", "async")),
    *((fault, "async", "restart") for fault in ("dies", "hangs")),
]
_CASES = [each for each in _CASES if each[:2] not in (("dies", "sync"), ("hangs", "sync"))]  # with us, nobody can tell
_SWEEP_FAULTS = ("parent killed", "worker killed", "node killed", "two at once")


def simulators(tally: Tally, seed: int) -> None:
    """Each fault, in one process and in workers: a sentence that names it, or a restart that is told, never a hang."""
    fault, how, policy = _CASES[seed % len(_CASES)]
    more = ["--num-envs", 2, "--vectorization", how, "--on-env-error", policy]
    if fault == "hangs":
        more += ["--env-timeout", 5]
    with scratch() as room:
        done = run(*train_words("iq", room / "run", *more, env=env_id(fault)), seconds=240)
        outcome = done.outcome
        if fault == "ignores-seeds" and done.code == 0:  # seen only where an episode is to be brought back
            again = run("resume", room / "run", "--trust-env", "--steps", 240)
            outcome = "SILENT" if again.outcome == "done" else again.outcome
        elif policy == "restart" and outcome == "fallen back":
            outcome = "fallen back" if _restarts(room / "run") else "SILENT"
        elif outcome == "done":
            outcome = "SILENT"
        tally.add(seed, f"{fault}, {how}, {policy}", outcome, "", done)


def _restarts(folder: Path) -> int:
    """As the metrics tell."""
    with open(folder / "metrics.csv", newline="") as file:
        return int(float(list(csv.DictReader(file))[-1]["env_restarts"]))


def sweeps(tally: Tally, seed: int) -> None:
    """Parent, worker or both killed, or a second sweep in the same folder; then the same command to the end."""
    chance = random.Random(seed)
    fault = _SWEEP_FAULTS[seed % len(_SWEEP_FAULTS)]
    with scratch() as room:
        words = _words(room)
        out = room / "sweep"
        first = start(*words, "--out", out)
        while first.poll() is None and not list(out.glob("*/*/*/checkpoints/*.json")):
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1))
        if fault == "two at once":
            second = run(*words, "--out", out)
            if "another sweep is running" not in second.err and first.poll() is None:
                tally.add(seed, fault, "NO SENTENCE", "", second)
        else:
            _kill(first, fault)
        ended = end(first)
        again = run(*words, "--out", out) if ended.code else ended
        apart = differing(_whole(), _results(out))
        bad = again.outcome if again.code else "DIFFERENT"
        tally.add(seed, fault, "identical" if again.code == 0 and not apart else bad, f"{apart}", again)


@functools.cache
def _whole() -> dict[str, bytes]:
    with scratch() as room:
        run(*_words(room), "--out", room / "sweep")
        return _results(room / "sweep")


def _words(room: Path) -> list[object]:
    (room / "tiny.toml").write_text(SUITE.format(env=ENV, steps=400))
    return ["sweep", "--suite", room / "tiny.toml", "--seeds", "2", "--workers", "1", "--no-random-scores"]


def _kill(parent: subprocess.Popen[str], fault: str) -> None:
    """A node takes the parent and its workers with it, all at once."""
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    workers = [int(child) for child in children.read_text().split()] if children.exists() else []
    if fault == "node killed" and parent.poll() is None:
        os.kill(parent.pid, signal.SIGSTOP)  # or it would start the next worker in between
    for process in ([] if fault == "parent killed" else workers) + ([] if fault == "worker killed" else [parent.pid]):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:  # it has just ended
            continue


def _results(out: Path) -> dict[str, bytes]:
    runs = {str(path.parent.relative_to(out)): path.parent for path in sorted(out.rglob("config.json"))}
    return {f"{name}/{file}": content for name, folder in runs.items() for file, content in files_of(folder).items()}
