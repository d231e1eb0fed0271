"""The tables of docs/adaptive.md that no report has, from the study tables in this folder and in gym-300k.

    python benchmarks/gym-100k/tables.py [LINE]

LINE, `iq-auto` by default, is one of the column `algo`. "At equal processor time" is by what a step costs, measured
side by side (peers/costs.py): the runs were made on several machines, so their clocks cannot be compared.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "peers"))

from costs import costs  # noqa: E402

LONGER = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5")
TASKS = (*LONGER, "Humanoid-v5")
TESTS = ("HumanoidStandup-v5", "Pusher-v5")
SAC, CROSSQ = "sac", "sbx-crossq"

Runs = dict[tuple[str, str], dict[int, np.ndarray]]  # (line, task) -> seed -> values at the evaluations


def read(study: str, file: str, column: str) -> Runs:
    found: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (HERE.parent / study / file).open(newline="") as table:
        for row in csv.DictReader(table):
            found[row["algo"], row["env"]][int(row["seed"])].append(float(row[column] or "nan"))
    return {key: {seed: np.array(values) for seed, values in runs.items()} for key, runs in found.items()}


def rightness(study: str) -> Callable[[str, str, int, int], str]:
    """Of V: a function that tells how far it was from the returns that followed, and what these differ by.

    It takes the line, the task, the seed, and the number of samples at the end: the table has one of 1,000 steps, which
    is an episode or a few, for every 10,000.
    """
    over, spread = (read(study, "metrics.csv", column) for column in ("overestimation", "return_spread"))

    def told(line: str, task: str, seed: int, samples: int) -> str:
        if seed not in over.get((line, task), {}):  # the oldest runs, and those of other libraries
            return ""
        too_high, apart = (np.nanmean(each[line, task][seed][-samples:]) for each in (over, spread))
        if abs(too_high) < 1:
            return f"right within 1 of {apart:.0f}"
        return f"{abs(too_high):.0f} too {'high' if too_high > 0 else 'low'} of {apart:.0f}"

    return told


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


def listed(curve: np.ndarray) -> str:
    *earlier, last = (f"{each:,.0f}" for each in curve)
    return ", ".join([*earlier, f"**{last}**"])


def with_error(value: float, error: float) -> str:
    return f"{value:,.0f}" if np.isnan(error) else f"{value:,.0f} ± {error:,.0f}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |")


def short(chosen: str) -> None:
    returns, cost = read("gym-100k", "evaluations.csv", "mean_return"), costs()
    if chosen not in (lines := sorted({line for line, _ in returns})):
        sys.exit(f"gym-100k has no line {chosen!r}; it has:\n" + "\n".join(lines))
    right = rightness("gym-100k")
    random = json.loads((HERE / "about.json").read_text())["random_scores"]

    print("\nEvery run: at 10,000, 20,000, ... steps; V, last 50,000 steps")
    for task in (*TASKS, *TESTS):
        for line in (chosen, CROSSQ, *([SAC] if task in TESTS else [])):
            for seed, curve in sorted(returns.get((line, task), {}).items()):
                print_row(task, line, str(seed), listed(curve), right(line, task, seed, 5))

    print("\nBeside SAC: seeds; return; difference in standard errors of it; score; score at equal processor time")
    done = [task for task in (*TASKS, *TESTS) if (chosen, task) in returns]
    for task in done:
        last, reference = mean(returns[chosen, task])[-1], mean(returns[SAC, task])
        errors = [standard_error(returns[line, task]) for line in (chosen, SAC)]
        zero, then = random[task]["mean"], in_time(reference, cost[SAC])
        apart = (last - reference[-1]) / np.hypot(*errors)
        share = [percent((last - zero) / (other - zero)) for other in (reference[-1], then)]
        both = (with_error(*each) for each in zip((last, reference[-1]), errors, strict=True))
        print_row(task, str(len(returns[chosen, task])), *both, "" if np.isnan(apart) else f"{apart:+.1f}", *share)

    print("\nBeside CrossQ: at equal steps, and at equal processor time")
    shares = []
    for task in (task for task in TASKS if task in done):
        last, other = mean(returns[chosen, task])[-1], mean(returns[CROSSQ, task])
        then = in_time(other, cost[CROSSQ])
        shares.append((last / other[-1], last / then))
        cells = (f"{other[-1]:,.0f}", percent(shares[-1][0]), f"{then:,.0f}", percent(shares[-1][1]))
        print_row(task, f"{last:,.0f}", *cells)
    print_row("mean", "", "", percent(np.mean(shares, axis=0)[0]), "", percent(np.mean(shares, axis=0)[1]))


def longer(chosen: str) -> None:
    print("\nTo 300,000 steps: at 50,000, 100,000, ...; mean of the last five; V, last 100,000 steps")
    returns = read("gym-300k", "evaluations.csv", "mean_return")
    right = rightness("gym-300k")
    for task in LONGER:
        for line in (chosen, SAC):
            for seed, curve in sorted(returns.get((line, task), {}).items()):
                last = f"{curve[-5:].mean():,.0f}"
                print_row(task, line, str(seed), listed(curve[4::5]), last, right(line, task, seed, 10))


if __name__ == "__main__":
    line = sys.argv[1] if len(sys.argv) > 1 else "iq-auto"
    short(line)
    longer(line)
