"""Faults injected into the real command line, and what came of each: python benchmarks/faults/run.py kills --count 20.

Each part prints a row per fault and appends it to results.csv. Everything is told by its seed: an outcome that is not
expected makes the exit code 1 and is printed with the seed that repeats it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import files
import outside
import training

PARTS = {
    "kills": training.kills,
    "corruption": files.corruption,
    "hostile": files.hostile,
    "simulators": outside.simulators,
    "disk": outside.disk,
    "sweeps": outside.sweeps,
    "soak": training.soak,
    "determinism": training.determinism,
}
_BATCH = 20  # cases between two looks at the clock


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "part", choices=PARTS, help="; ".join(f"{n}: {p.__doc__.splitlines()[0]}" for n, p in PARTS.items())
    )
    parser.add_argument("--count", type=int, help="how many cases; by default 20, or as many as --minutes allow")
    parser.add_argument("--minutes", type=float, help="go on with new seeds for this long instead")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others follow")
    parser.add_argument("--steps", type=int, default=2_000_000, help="of the soak")
    options = parser.parse_args()
    if options.part == "soak":
        return 0 if training.soak(range(options.seed, options.seed + (options.count or 1)), options.steps) else 1
    first, good, until = options.seed, True, time.monotonic() + 60 * (options.minutes or 0)
    while True:
        count = options.count or _BATCH
        good &= PARTS[options.part](range(first, first + count))
        first += count
        if time.monotonic() >= until:
            return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
