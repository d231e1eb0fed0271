"""Run folders -> one CSV of evaluations per task, one of configs, and one figure of learning curves.

Usage: python collect.py DIR... RESULTS   (any folder with config.json and evaluations.csv below DIR counts as a run)
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

SUMMARY = ("step", "mean_return", "std_return", "mean_length")
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
    return " ".join([config["algorithm"], *(f"{name}={config[name]}" for name in varied)])


def write_tables(runs: list[Run], results: Path) -> None:
    by_task: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_task[run[0]["env"]].append(run)
    for task, members in by_task.items():
        with open(results / f"{task}.csv", "w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("algorithm", "seed", *SUMMARY))
            for config, rows in members:
                writer.writerows(
                    (config["algorithm"], config["seed"], *(row[name] for name in SUMMARY)) for row in rows
                )
    lines = [json.dumps(config, sort_keys=True) for config, _ in runs]
    (results / "configs.jsonl").write_text("\n".join(lines) + "\n")


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
    figure, axes = plt.subplots(1, len(tasks), figsize=(5 * len(tasks), 4), squeeze=False, layout="constrained")
    for axis, task in zip(axes[0], tasks, strict=True):
        for name, (steps, returns) in curves([run for run in runs if run[0]["env"] == task]).items():
            mean, error = returns.mean(0), returns.std(0) / np.sqrt(len(returns))
            line = axis.plot(steps, mean, label=f"{name} ({len(returns)})")[0]
            axis.fill_between(steps, mean - error, mean + error, alpha=0.2, color=line.get_color())
        axis.set(title=task, xlabel="environment steps", ylabel="return of 10 deterministic episodes")
        axis.legend(fontsize="small", title="algorithm (seeds)")
    figure.savefig(path, dpi=120)


def print_finals(runs: list[Run]) -> None:
    for task in sorted({config["env"] for config, _ in runs}):
        print(task)
        for name, (steps, returns) in curves([run for run in runs if run[0]["env"] == task]).items():
            last = returns[:, -1]
            error = last.std(ddof=1) / np.sqrt(len(last)) if len(last) > 1 else float("nan")
            print(
                f"  {name:<24}{last.mean():10.1f} +- {error:.1f} (standard error, {len(last)} seeds, step {steps[-1]})"
            )


if __name__ == "__main__":
    *directories, results = map(Path, sys.argv[1:])
    runs = read_runs(directories)
    if not runs:
        sys.exit(
            f"no runs below {', '.join(map(str, directories)) or 'nothing: give folders, then the results folder'}"
        )
    results.mkdir(parents=True, exist_ok=True)
    write_tables(runs, results)
    draw(runs, results / "curves.png")
    print_finals(runs)
