"""The evaluations of the study `adaptive` as one tidy table, evaluations.csv, the random policy's scores beside it.

Usage: python table.py     (reads the folder `runs` beside this file; figures and scores: implicitq report runs)
"""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

from implicitq.runs.layout import find_runs

HERE = Path(__file__).parent
COLUMNS = ("algo", "env", "seed", "step", "mean_return", "cpu_seconds")

if __name__ == "__main__":
    runs, broken = find_runs(HERE / "runs")
    if broken:
        raise SystemExit(f"broken: {', '.join(f'{each.name} ({each.reason})' for each in broken)}")
    with open(HERE / "evaluations.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for run in runs:
            algorithm = run.config.algorithm
            if run.folder.parent.name == algorithm:  # variants, as of the ablation, have longer names
                about = (algorithm, run.config.env, run.config.seed)
                writer.writerows((*about, *row) for row in zip(run.steps, run.means, run.seconds, strict=True))
    shutil.copy(HERE / "runs" / "random-scores.json", HERE)
