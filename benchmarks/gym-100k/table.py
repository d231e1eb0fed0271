"""One tidy table of finished runs, their learning curves against steps and processor time, and their scores.

Usage: python table.py [DIR]   (DIR: the folder of the sweep, by default `runs` beside this file)
Writes evaluations.csv, random-scores.json, scores.csv and curves.png beside this file.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

HERE = Path(__file__).parent
COLUMNS = ("algo", "env", "seed", "step", "mean_return", "cpu_seconds")
STEPS = 100_000
BASELINE = "sac"
Row = dict[str, str]


def read(path: Path) -> list[Row]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def rows_of(folder: Path) -> list[Row]:
    """Of a finished run; none otherwise."""
    config = json.loads((folder / "config.json").read_text())
    evaluations = read(folder / "evaluations.csv")
    if not evaluations or int(evaluations[-1]["step"]) < STEPS:
        return []
    seconds = {row["step"]: row["cpu_seconds"] for row in read(folder / "timing.csv")}
    name = {"algo": config["algorithm"], "env": config["env"], "seed": str(config["seed"])}
    return [
        {**name, **{key: row[key] for key in ("step", "mean_return")}, "cpu_seconds": seconds[row["step"]]}
        for row in evaluations
    ]


def gather(directory: Path) -> list[Row]:
    """The rows of all finished runs, by task, algorithm, seed and step; kept as evaluations.csv."""
    found = [row for path in directory.glob("*/*/seed-*/evaluations.csv") for row in rows_of(path.parent)]
    found.sort(key=lambda row: (*run_of(row), int(row["step"])))
    with open(HERE / "evaluations.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    (HERE / "random-scores.json").write_text((directory / "random-scores.json").read_text())
    return found


def run_of(row: Row) -> tuple[str, str, int]:
    return row["env"], row["algo"], int(row["seed"])


Curves = dict[str, dict[str, list[np.ndarray]]]  # task -> algorithm -> one [evaluations, 3] per seed


def curves_of(rows: list[Row]) -> Curves:
    """Steps, processor seconds and mean return of every run."""
    points = defaultdict(list)
    for row in rows:
        points[run_of(row)].append([float(row["step"]), float(row["cpu_seconds"]), float(row["mean_return"])])
    curves: Curves = defaultdict(lambda: defaultdict(list))
    for (task, algorithm, _), values in sorted(points.items()):
        curves[task][algorithm].append(np.array(values))
    return curves


def write_scores(curves: Curves) -> None:
    """Per task: mean and standard error at the end, how many standard errors of the difference that is above SAC, the
    SAC-normalised score, and the score against SAC at the processor time the algorithm took. At last, means of tasks.
    """
    random = {task: entry["mean"] for task, entry in json.loads((HERE / "random-scores.json").read_text()).items()}
    header = ("env", "algo", "seeds", "mean", "standard_error", "cpu_seconds", "above_sac", "score", "score_equal_cpu")
    scores: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with open(HERE / "scores.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for task, algorithms in curves.items():
            baseline = algorithms.get(BASELINE, [])
            if not baseline:
                continue
            sac, sac_error = mean_and_error(baseline)
            for algorithm, runs in algorithms.items():
                mean, error = mean_and_error(runs)
                seconds = float(np.mean([run[-1, 1] for run in runs]))
                then = sac if runs is baseline else np.mean([np.interp(seconds, *run[:, 1:].T) for run in baseline])
                score, even = ((mean - random[task]) / (other - random[task]) for other in (sac, then))
                above = (mean - sac) / np.hypot(error, sac_error)
                scores[algorithm].append((score, even))
                values = (round(mean, 1), round(error, 1), round(seconds), round(above, 2))
                writer.writerow((task, algorithm, len(runs), *values, round(score, 3), round(even, 3)))
        for algorithm, values in scores.items():
            means = np.mean(values, axis=0)
            writer.writerow((f"mean of {len(values)}", algorithm, *[""] * 5, *(round(mean, 3) for mean in means)))


def print_scores() -> None:
    """scores.csv as the table of docs/adaptive.md."""
    print("| task | algorithm | seeds | return at 100,000 steps | processor time | score | at equal processor time |")
    print("|---|---|---|---|---|---|---|")
    for row in read(HERE / "scores.csv"):
        result = f"{float(row['mean']):,.0f}" if row["mean"] else ""
        result += f" ± {float(row['standard_error']):,.0f}" if int(row["seeds"] or 0) > 1 else ""
        seconds = f"{row['cpu_seconds']} s" if row["cpu_seconds"] else ""
        percents = (f"{float(row[key]):.0%}".replace("%", " %") for key in ("score", "score_equal_cpu"))
        print("|", " | ".join((row["env"], f"`{row['algo']}`", row["seeds"], result, seconds, *percents)), "|")


def mean_and_error(runs: list[np.ndarray]) -> tuple[float, float]:
    """Of the returns at the end, over seeds; nan for the standard error of one seed."""
    last = np.array([run[-1, 2] for run in runs])
    return float(last.mean()), float(last.std(ddof=1) / np.sqrt(len(last))) if len(last) > 1 else np.nan


def draw(curves: Curves) -> None:
    figure, axes = plt.subplots(2, len(curves), figsize=(3.2 * len(curves), 5.5), squeeze=False, sharey="col")
    for column, (task, algorithms) in enumerate(curves.items()):
        for algorithm, runs in algorithms.items():
            mean = np.mean(runs, axis=0)
            for row, unit in enumerate((1e3, 60)):
                line = axes[row, column].plot(mean[:, row] / unit, mean[:, 2], label=f"{algorithm} ({len(runs)})")
                for run in runs:
                    axes[row, column].plot(run[:, row] / unit, run[:, 2], color=line[0].get_color(), alpha=0.25)
        axes[0, column].set(title=task, xlabel="environment steps / 1,000")
        axes[1, column].set(xlabel="processor time / minutes")
        axes[0, column].legend(fontsize=7)
    for axis in axes[:, 0]:
        axis.set_ylabel("mean return of 10 episodes")
    figure.tight_layout()
    figure.savefig(HERE / "curves.png", dpi=110)


if __name__ == "__main__":
    curves = curves_of(gather(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "runs"))
    write_scores(curves)
    print_scores()
    draw(curves)
