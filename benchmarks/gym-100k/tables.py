"""The tables of docs/adaptive.md that no report has, from the study table in this folder.

    python benchmarks/gym-100k/tables.py

"At equal processor time" is by what a step costs, measured side by side (peers/costs.py): the runs were made on several
machines, so their clocks cannot be compared.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "peers"))

from costs import costs  # noqa: E402

TASKS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")
LINE, SAC, CROSSQ = "iq-auto", "sac", "sbx-crossq"

Runs = dict[tuple[str, str], dict[int, np.ndarray]]  # (line, task) -> seed -> values at the evaluations


def read(file: str, column: str) -> Runs:
    found: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (HERE / file).open(newline="") as table:
        for row in csv.DictReader(table):
            found[row["algo"], row["env"]][int(row["seed"])].append(float(row[column] or "nan"))
    return {key: {seed: np.array(values) for seed, values in runs.items()} for key, runs in found.items()}


def mean(runs: dict[int, np.ndarray]) -> np.ndarray:
    return np.mean(list(runs.values()), axis=0)


def standard_error(runs: dict[int, np.ndarray]) -> float:
    """Of the mean of the last evaluations; nan for one seed."""
    lasts = [curve[-1] for curve in runs.values()]
    return float(np.std(lasts, ddof=1) / len(lasts) ** 0.5) if len(lasts) > 1 else np.nan


def in_time(curve: np.ndarray, cost: float) -> float:
    """The return by the time that `iq-auto` takes for its last step, if each step costs `cost` times as much."""
    evaluations = np.arange(1, len(curve) + 1)
    return float(np.interp(len(curve) / cost, evaluations, curve))


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |")


def main() -> None:
    returns, cost = read("evaluations.csv", "mean_return"), costs()
    over, spread = read("metrics.csv", "overestimation"), read("metrics.csv", "return_spread")
    random = json.loads((HERE / "about.json").read_text())["random_scores"]

    print("\nEvery run: at 10,000, 20,000, ... steps; V less the return that followed, and the spread of such returns")
    for task in TASKS:
        for line in (LINE, CROSSQ):
            for seed, curve in sorted(returns[line, task].items()):
                right = ""
                if line == LINE:
                    right = f"{over[line, task][seed][-1]:+.0f} of {spread[line, task][seed][-1]:.0f}"
                print_row(task, line, str(seed), ", ".join(f"{each:,.0f}" for each in curve), right)

    print("\nBeside SAC: return; difference in standard errors of it; score; score at equal processor time")
    for task in TASKS:
        last, reference = mean(returns[LINE, task])[-1], mean(returns[SAC, task])
        errors = [standard_error(returns[line, task]) for line in (LINE, SAC)]
        zero, then = random[task]["mean"], in_time(reference, cost[SAC])
        apart = (last - reference[-1]) / np.hypot(*errors)
        share = [f"{(last - zero) / (other - zero):.0%}" for other in (reference[-1], then)]
        print_row(task, str(len(returns[LINE, task])), f"{last:,.0f} ± {errors[0]:,.0f}", f"{apart:+.1f}", *share)

    print("\nBeside CrossQ: at equal steps, and at equal processor time")
    shares = []
    for task in TASKS:
        last, other = mean(returns[LINE, task])[-1], mean(returns[CROSSQ, task])
        then = in_time(other, cost[CROSSQ])
        shares.append((last / other[-1], last / then))
        cells = (f"{other[-1]:,.0f}", f"{shares[-1][0]:.0%}", f"{then:,.0f}", f"{shares[-1][1]:.0%}")
        print_row(task, f"{last:,.0f}", *cells)
    print_row("mean", "", "", f"{np.mean(shares, axis=0)[0]:.0%}", "", f"{np.mean(shares, axis=0)[1]:.0%}")


if __name__ == "__main__":
    main()
