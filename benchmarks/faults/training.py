"""Faults of a run: killed at any moment, made twice, made long."""

from __future__ import annotations

import csv
import functools
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from shared import HERE, Tally, differing, end, files_of, go_on, run, scratch, start, train_words

from implicitq.configs import ALGORITHMS

_SHAPES = (("1", "sync"), ("3", "sync"), ("3", "async"))  # environments, and how they are stepped
_STEPS = 400  # ten checkpoints
_MOST_KILLS = 12  # of one run
_CHANGES = 45  # to the files of a run that goes on, up to its second checkpoint
_SOAK = 2_000_000


class _Whole(NamedTuple):
    """A run that nobody killed."""

    files: dict[str, bytes]
    seconds: float  # of its training


@functools.cache
def _whole(algorithm: str, more: tuple[str, ...]) -> _Whole:
    with scratch() as room:
        process = start(*train_words(algorithm, room / "run", *more, steps=_STEPS))
        _wait_for_life(process, room / "run")
        began = time.monotonic()
        done = end(process)
        if done.code:
            raise SystemExit(f"{algorithm} fails without any fault: {done.err}")
        return _Whole(files_of(room / "run"), time.monotonic() - began)


def kills(tally: Tally, seed: int) -> None:
    """SIGKILL at random moments and inside writes, again and again; at the end, compare every file but the clocks."""
    chance = random.Random(seed)
    algorithm = list(ALGORITHMS)[seed % len(ALGORITHMS)]
    count, how = _SHAPES[seed // len(ALGORITHMS) % len(_SHAPES)]
    more = ("--num-envs", count, "--vectorization", how)
    whole = _whole(algorithm, more)
    with scratch() as room:
        folder, words = room / "run", train_words(algorithm, room / "run", *more, steps=_STEPS)
        moments = []
        while len(moments) < _MOST_KILLS and (moment := _killed(folder, words, chance, whole)):
            moments.append(moment)
        done = run(*go_on(folder, words))
        over = done.code == 2 and "is finished at step" in done.err  # by itself, or killed after the last checkpoint
        apart = differing(whole.files, files_of(folder)) if done.code == 0 or over else []
        outcome = f"NOT RESUMED ({done.outcome})" if not over and done.code else "DIFFERENT" if apart else "identical"
        for moment in moments:
            tally.add(seed, moment, outcome, f"{algorithm} {count} {how}, {', '.join(apart)}", done)


def _killed(folder: Path, words: list[str], chance: random.Random, whole: _Whole) -> str | None:
    """Start or go on, and kill; gives the kind of moment, or None if the process came to its own end before."""
    if chance.random() < 0.5:
        at = {"FAULT_BELOW": str(folder), "FAULT_AT": str(chance.randrange(1, _CHANGES))}
        process = start(*go_on(folder, words), environment={**at, "PYTHONPATH": str(HERE / "hooks")})
        moment = "kill at a write"
    else:
        process = start(*go_on(folder, words))
        moment = "kill at a random moment"
        if chance.random() < 0.9:  # else while it starts
            _wait_for_life(process, folder)
        time.sleep(chance.uniform(0, 0.4) * whole.seconds)
        process.kill()
    return moment if end(process).code == -9 else None


def _wait_for_life(process: subprocess.Popen[str], folder: Path) -> None:
    """Until a run begins to write, or ends: both a first start and a resume write the header of the clocks."""
    before = _written(folder / "timing.csv")
    while process.poll() is None and _written(folder / "timing.csv") == before:
        time.sleep(0.01)


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def determinism(tally: Tally, seed: int) -> None:
    """Two processes with the same seed: identical bytes, every algorithm."""
    algorithm = list(ALGORITHMS)[seed % len(ALGORITHMS)]
    with scratch() as room:
        both = [start(*train_words(algorithm, room / name, "--seed", seed)) for name in ("one", "two")]
        ends = [end(process) for process in both]
        bad = next((each for each in ends if each.code), None)
        apart = [] if bad else differing(files_of(room / "one"), files_of(room / "two"))
        outcome = bad.outcome if bad else "DIFFERENT" if apart else "identical"
        tally.add(seed, f"two processes of {algorithm}", outcome, ", ".join(apart), bad)


def soak(tally: Tally, seed: int) -> None:
    """2,000,000 steps with a small network: memory flat, the last tenth as fast as the second, files bounded.

    Ctrl-C or SIGTERM ends it early, with the outcome of what was reached.
    """
    with scratch() as room:
        words = train_words("iq", room / "run", "--seed", seed, "--num-envs", 8, steps=_SOAK)
        for flag in ("--eval-every", "--checkpoint-every", "--log-every"):
            words += [flag, str(_SOAK // 100)]
        process = start(*words)
        memory = _watched(process)
        done = end(process)
        with open(room / "run/timing.csv", newline="") as file:
            clock = {int(row["step"]): float(row["cpu_seconds"]) for row in csv.DictReader(file)}
        steps = max(clock)
        pace = [_seconds(clock, steps * tenth // 10, steps * (tenth + 1) // 10) for tenth in range(10)]
        half = memory[len(memory) // 2 : -2] or [0.0]
        size = sum(path.stat().st_size for path in (room / "run").rglob("*") if path.is_file()) / 1e6
        tenths = " ".join(f"{seconds:.0f}" for seconds in pace)
        about = f"memory {half[0]:.0f} to {half[-1]:.0f} MB; processor seconds by tenth {tenths}; files {size:.1f} MB"
        good = done.code in (0, 128 + signal.SIGTERM) and half[-1] <= 1.05 * half[0] and size < 50
        good = good and pace[9] <= 1.05 * pace[1]
        tally.add(seed, f"{steps:,} steps: {about}", "harmless" if good else "GROWS OR SLOWS", about, done)


def _watched(process: subprocess.Popen[str]) -> list[float]:
    """Its memory, second by second, until it ends or is to end."""
    memory: list[float] = []
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)
    try:
        while process.poll() is None:
            memory.append(_megabytes(process.pid))
            time.sleep(1)
    except KeyboardInterrupt:
        process.terminate()
    return memory


def _megabytes(process: int) -> float:
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0.0
    return int(pages) * 4096 / 1e6


def _seconds(clock: dict[int, float], first: int, until: int) -> float:
    near = [min(clock, key=lambda step: abs(step - goal)) for goal in (first, until)]
    return clock[near[1]] - clock[near[0]]
