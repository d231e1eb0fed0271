"""Keeps the small files of finished runs, draws their learning curves, and prints their last scores.

Usage: python collect.py DIR... RESULTS   (any folder with config.json and evaluations.csv below DIR counts as a run)
Writes RESULTS/RUN/{config.json,versions.json,evaluations.csv,metrics.csv,timing.csv}, RESULTS/curves.png and
RESULTS/scores.csv. Give RESULTS itself as DIR to draw what was kept once more.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

KEPT = ("config.json", "versions.json", "evaluations.csv", "metrics.csv", "timing.csv")
Run = tuple[dict, list[dict[str, str]]]  # config, rows of evaluations.csv


def read_runs(directories: list[Path]) -> list[Run]:
    """Every run below the folders, by task, algorithm and seed."""
    found = []
    for path in sorted(path for directory in directories for path in directory.rglob("evaluations.csv")):
        config_path = path.parent / "config.json"
        if config_path.exists():
            with open(path, newline="") as file:
                rows = list(csv.DictReader(file))
            if rows:
                config = json.loads(config_path.read_text())
                versions = path.parent / "versions.json"
                config["versions"] = json.loads(versions.read_text()) if versions.exists() else {}
                found.append((config, rows))
    for config, _ in found:
        config["label"] = label_of(config, [other for other, _ in found])
    return sorted(found, key=lambda run: (run[0]["env"], run[0]["label"], run[0]["seed"]))


def label_of(config: dict, others: list[dict]) -> str:
    """The algorithm, and the settings in which its runs on this task differ from each other."""
    alike = [other for other in others if (other["env"], other["algorithm"]) == (config["env"], config["algorithm"])]
    names = [name for name in config if name not in ("seed", "steps", "versions", "label")]
    varied = [name for name in names if any(other.get(name) != config[name] for other in alike)]
    return " ".join([config["algorithm"], *(f"{name}={plain(config[name])}" for name in varied)])


def plain(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, list) else str(value)


def keep(directories: list[Path], results: Path) -> None:
    """Copy what is worth keeping of every run."""
    for path in sorted(path for directory in directories for path in directory.rglob("evaluations.csv")):
        folder = results / path.parent.name
        if (path.parent / "config.json").exists() and folder.resolve() != path.parent.resolve():
            folder.mkdir(parents=True, exist_ok=True)
            for name in KEPT:
                if (path.parent / name).exists():
                    shutil.copy(path.parent / name, folder / name)


def curves(members: list[Run]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Algorithm -> (steps, returns [seeds, steps]), as far as all its seeds have come."""
    by_algorithm: dict[str, list[dict[int, float]]] = defaultdict(list)
    for config, rows in members:
        by_algorithm[config["label"]].append({int(row["step"]): float(row["mean_return"]) for row in rows})
    result = {}
    for name, seeds in by_algorithm.items():
        steps = sorted(set.intersection(*(set(seed) for seed in seeds)))
        result[name] = np.array(steps), np.array([[seed[step] for step in steps] for seed in seeds])
    return result


def draw(runs: list[Run], path: Path) -> None:
    tasks = sorted({config["env"] for config, _ in runs})
    figure, axes = plt.subplots(1, len(tasks), figsize=(5.5 * len(tasks), 6), squeeze=False, layout="constrained")
    for axis, task in zip(axes[0], tasks, strict=True):
        for name, (steps, returns) in curves([run for run in runs if run[0]["env"] == task]).items():
            mean, error = returns.mean(0), returns.std(0) / np.sqrt(len(returns))
            line = axis.plot(steps, mean, label=f"{name} ({len(returns)})")[0]
            axis.fill_between(steps, mean - error, mean + error, alpha=0.2, color=line.get_color())
        axis.set(title=task, xlabel="environment steps", ylabel="return of 10 deterministic episodes")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")
        axis.grid(alpha=0.3)
        axis.legend(
            fontsize="small", title="algorithm (seeds); band: ± 1 standard error", frameon=False, loc="upper center",
            bbox_to_anchor=(0.5, -0.13),
        )  # fmt: skip
    figure.savefig(path, dpi=120)


def finals(runs: list[Run]) -> list[dict[str, object]]:
    """Task, algorithm, seeds, and mean and standard error over seeds of the last evaluation."""
    rows: list[dict[str, object]] = []
    for task in sorted({config["env"] for config, _ in runs}):
        for name, (steps, returns) in curves([run for run in runs if run[0]["env"] == task]).items():
            last = returns[:, -1]
            error = f"{last.std(ddof=1) / np.sqrt(len(last)):.1f}" if len(last) > 1 else ""
            score = {"mean_return": f"{last.mean():.1f}", "standard_error": error}
            rows.append({"env": task, "algorithm": name, "step": steps[-1], "seeds": len(last), **score})
    return rows


if __name__ == "__main__":
    *directories, results = map(Path, sys.argv[1:])
    runs = read_runs(directories)
    if not runs:
        sys.exit(
            f"no runs below {', '.join(map(str, directories)) or 'nothing: give folders, then the results folder'}"
        )
    results.mkdir(parents=True, exist_ok=True)
    keep(directories, results)
    draw(runs, results / "curves.png")
    scores = finals(runs)
    with open(results / "scores.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, scores[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(scores)
    for score in scores:
        print(*score.values(), sep="\t")
