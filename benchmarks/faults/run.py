"""Faults injected into the real command line, and what came of each: python benchmarks/faults/run.py kills --count 20.

The outcomes of a part go to results.csv, in the place of those of an earlier campaign; --more goes on with that one.
Everything is told by its seed: an outcome that is not expected makes the exit code 1 and is printed with the seed that
repeats it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import math
import multiprocessing
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import shared

os.environ.update(shared.SETTINGS)  # before JAX reads them

import damage
import fuzz
import hostile
import outside
import training

PARTS = {
    "kills": training.kills,
    "corruption": damage.corruption,
    "hostile": hostile.hostile,
    "fuzz": fuzz.fuzz,
    "simulators": outside.simulators,
    "disk": outside.disk,
    "sweeps": outside.sweeps,
    "soak": training.soak,
    "determinism": training.determinism,
}
_FORKING = ("kills", "disk", "simulators")  # what takes thousands of processes


def main() -> int:
    about = "; ".join(f"{name}: {part.__doc__.splitlines()[0]}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS, help=about)
    parser.add_argument("--count", type=int, help="how many faults to inject; by default 20")
    parser.add_argument("--minutes", type=float, help="go on with new seeds for this long")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others follow")
    parser.add_argument("--more", action="store_true", help="go on after the last seed in results.csv, and add to it")
    parser.add_argument("--workers", type=int, default=1, help="cases that run side by side")
    parser.add_argument("--keep", action="store_true", help="leave results.csv as it is")
    options = parser.parse_args()
    until = time.monotonic() + 60 * (options.minutes or math.inf)
    tally, seed = shared.Tally(options.part), options.seed
    if options.more:
        tally.read(shared.RESULTS)
        seed = max([-1, *tally.seeds]) + 1
    most = tally.injected + (options.count or (20 if options.minutes is None else math.inf))
    with concurrent.futures.ProcessPoolExecutor(options.workers, multiprocessing.get_context("fork")) as pool:
        running: set[concurrent.futures.Future[shared.Tally]] = set()
        while True:
            while len(running) < options.workers and tally.injected < most and time.monotonic() < until:
                running.add(pool.submit(_tallied, options.part, seed))
                seed += 1
            if not running:
                break
            done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for each in done:
                tally.include(each.result())
            if not options.keep and tally.seeds:
                tally.write(shared.RESULTS)
            if sys.stdout.isatty():
                print(f"\r{tally}", end="", flush=True)
    print(f"\r{tally}")
    return 0 if tally.good else 1


def _tallied(part: str, seed: int) -> shared.Tally:
    """In a process of the pool, which stays for the next seed."""
    shared.forking = part in _FORKING
    tally = shared.Tally(part)
    PARTS[part](tally, seed)
    return tally


if __name__ == "__main__":
    sys.exit(main())
