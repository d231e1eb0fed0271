"""Faults of a run: killed at any moment, made twice, made long."""

from __future__ import annotations

import csv
import random
import time
from pathlib import Path

from shared import Tally, differing, end, files_of, go_on, run, scratch, start, train_words

from implicitq.configs import ALGORITHMS

_KILLS_PER_RUN = 3
_SHAPES = (("1", "sync"), ("3", "sync"), ("3", "async"))  # environments, and how they are stepped


def kills(seeds: range) -> bool:
    """SIGKILL at random moments and inside checkpoint writes; then resume, and compare every file but the clocks."""
    tally = Tally("kills", "train, resume")
    reference: dict[tuple[str, ...], tuple[dict[str, bytes], float]] = {}
    for seed in seeds:
        chance = random.Random(seed)
        algorithm = list(ALGORITHMS)[seed % len(ALGORITHMS)]
        count, how = _SHAPES[seed // len(ALGORITHMS) % len(_SHAPES)]
        more = ("--num-envs", count, "--vectorization", how)
        with scratch() as room:
            if (algorithm, *more) not in reference:
                began = time.monotonic()
                run(*train_words(algorithm, room / "whole", *more))
                reference[algorithm, *more] = files_of(room / "whole"), time.monotonic() - began
            whole, seconds = reference[algorithm, *more]
            folder, words = room / "run", train_words(algorithm, room / "run", *more)
            told = [_killed(folder, words, chance, seconds) for _ in range(_KILLS_PER_RUN)]
            done = run(*go_on(folder, words))
            over = done.code == 2 and "is finished at step" in done.err  # a kill after the last checkpoint
            apart = differing(whole, files_of(folder)) if done.code == 0 or over else []
            outcome = done.outcome if not over and done.code else "DIFFERENT" if apart else "identical"
            for moment in told:
                tally.add(outcome, seed, f"{algorithm} {count} {how}, {moment}, {', '.join(apart)}", done)
    return tally.write()


def _killed(folder: Path, words: list[str], chance: random.Random, seconds: float) -> str:
    """Start or go on, and kill: at a random moment, or as soon as a checkpoint is being written."""
    process = start(*go_on(folder, words))
    delay, in_write = chance.uniform(0.2, 1.0) * seconds, chance.random() < 0.5
    until = time.monotonic() + (seconds if in_write else delay)
    moment = f"after {delay:.1f} s"
    seen = set(folder.glob("checkpoints/*"))
    while time.monotonic() < until and process.poll() is None:
        if in_write and set(folder.glob("checkpoints/*")) - seen:
            time.sleep(chance.uniform(0, 0.02))
            moment = "while a checkpoint was written"
            break
        time.sleep(0.0005 if in_write else 0.01)
    process.kill()
    end(process)
    return moment


def determinism(seeds: range) -> bool:
    """Two processes with the same seed: identical bytes, every algorithm."""
    tally = Tally("determinism", "train")
    for seed in seeds:
        algorithm = list(ALGORITHMS)[seed % len(ALGORITHMS)]
        with scratch() as room:
            both = [start(*train_words(algorithm, room / name, "--seed", seed)) for name in ("one", "two")]
            ends = [end(process) for process in both]
            apart = differing(files_of(room / "one"), files_of(room / "two")) if not any(e.code for e in ends) else []
            bad = next((e for e in ends if e.code), None)
            tally.add(bad.outcome if bad else "DIFFERENT" if apart else "identical", seed, f"{algorithm} {apart}", bad)
    return tally.write()


def soak(seeds: range, steps: int = 2_000_000) -> bool:
    """A long run with a small network: memory flat, the last tenth as fast as the second, files bounded."""
    tally = Tally("soak", f"train iq --steps {steps}")
    every = str(max(1, steps // 100))
    for seed in seeds:
        with scratch() as room:
            words = [*train_words("iq", room / "run", "--seed", seed, steps=steps)]
            for flag in ("--eval-every", "--checkpoint-every", "--log-every"):
                words += [flag, every]
            process = start(*words)
            memory: list[float] = []
            while process.poll() is None:
                memory.append(_megabytes(process.pid))
                time.sleep(1)
            done = end(process)
            with open(room / "run/timing.csv", newline="") as file:
                clock = {int(row["step"]): float(row["cpu_seconds"]) for row in csv.DictReader(file)}
            pace = [_seconds(clock, steps * tenth // 10, steps * (tenth + 1) // 10) for tenth in range(10)]
            half = memory[len(memory) // 2 : -2] or [0.0]
            size = sum(path.stat().st_size for path in (room / "run").rglob("*") if path.is_file()) / 1e6
            about = f"memory {half[0]:.0f} -> {half[-1]:.0f} MB, tenths {[round(p, 1) for p in pace]} s, {size:.1f} MB"
            print(about)
            good = done.code == 0 and half[-1] <= 1.05 * half[0] and pace[9] <= 1.05 * pace[1] and size < 50
            tally.add("harmless" if good else "GROWS OR SLOWS", seed, about, done)
    return tally.write()


def _megabytes(process: int) -> float:
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0.0
    return int(pages) * 4096 / 1e6


def _seconds(clock: dict[int, float], first: int, until: int) -> float:
    near = [min(clock, key=lambda step: abs(step - goal)) for goal in (first, until)]
    return clock[near[1]] - clock[near[0]]
