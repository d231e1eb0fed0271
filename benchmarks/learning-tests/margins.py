"""How wide the margins of tests/test_learning.py are, over seeds, instruction sets and threads.

    XLA_FLAGS=--xla_cpu_max_isa=SSE4_2 taskset -c 0 python benchmarks/learning-tests/margins.py --seeds 8

trains what the tests train, with each seed, and adds rows to margins.csv: what was evaluated before and after, and
what the test asks for. Rows that are there are not made again.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "margins.csv"
COLUMNS = ("instructions", "threads", "case", "seed", "before", "after", "asked")
sys.path.insert(0, str(HERE.parents[1] / "tests"))

import implicitq  # noqa: E402
import test_learning as tests  # noqa: E402


class Case(NamedTuple):
    name: str
    algorithm: str
    env: Any
    steps: int
    settings: dict[str, Any]
    asked: float  # what the test wants the agent to end above


def cases() -> Iterator[Case]:
    for algorithm, kind in tests.parking_cases():
        env, settings = partial(tests.Parking, kind), tests.parking_settings(algorithm)
        yield Case(f"{algorithm} {kind}", algorithm, env, tests.parking_steps(algorithm), settings, tests.PARKED)
    yield Case("sac Pendulum-v1", "sac", "Pendulum-v1", tests.SWING_STEPS, tests.SWING, tests.SWUNG_UP)
    for num_envs in (1, 4):
        settings = {**tests.DIALS, "num_envs": num_envs}
        yield Case(f"iq MultiDiscrete {num_envs}", "iq", tests.Dials, tests.DIALS_STEPS, settings, tests.TURNED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    found = re.search(r"xla_cpu_max_isa=(\w+)", os.environ.get("XLA_FLAGS", ""))
    where = (found.group(1) if found else "all", str(len(os.sched_getaffinity(0))))
    done = set()
    if RESULTS.exists():
        with open(RESULTS, newline="") as file:
            done = {tuple(row[name] for name in COLUMNS[:4]) for row in csv.DictReader(file)}
    short = []
    for seed in range(options.seeds):
        for case in cases():
            if (*where, case.name, str(seed)) in done:
                continue
            agent = implicitq.make(case.algorithm, case.env, seed=seed, **case.settings)
            before = agent.evaluate(10).mean
            after = agent.learn(case.steps).evaluate(10).mean
            agent.close()
            row = (*where, case.name, seed, f"{before:.2f}", f"{after:.2f}", case.asked)
            print(*row, flush=True)
            with open(RESULTS, "a", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                if file.tell() == 0:
                    writer.writerow(COLUMNS)
                writer.writerow(row)
            if after <= case.asked:
                short.append(row)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
