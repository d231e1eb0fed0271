"""Run folders as if the runs had been made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from implicitq import configs
from implicitq.sweeps.studies import PlannedRun

VERSIONS = {"implicitq": "0.1.0", "gymnasium": "1.4.0", "mujoco": "4.0.0", "processor": "any", "threads": 1}
ENVIRONMENTS = {"gymnasium": "1.4.0", "mujoco": "4.0.0", "gymnasium-robotics": None}


def write_run(root: Path, run: PlannedRun, level: float, **changes: Any) -> Path:
    """A run folder as if the run had been made: a curve that rises to `level`."""
    folder = root / run.folder
    folder.mkdir(parents=True)
    config = run.config()
    (folder / "config.json").write_text(json.dumps({"layout": 1, **configs.to_json(config)}))
    versions = changes.get("versions", VERSIONS)
    if versions is not None:
        (folder / "versions.json").write_text(json.dumps(versions))
    steps = np.arange(config.eval_every, changes.get("until", config.steps) + 1, config.eval_every)
    noise = np.random.default_rng((run.seed, len(run.folder))).normal(size=len(steps))
    means = level * steps / config.steps + noise
    rows = [f"{step},{float(mean)!r},0.5,200.0,1.0,200" for step, mean in zip(steps, means, strict=True)]
    header = "step,mean_return,std_return,mean_length,return_0,length_0"
    (folder / "evaluations.csv").write_text("\n".join([header, *rows, ""]))
    if "rate" in changes:  # processor seconds per step; without it there are no clocks
        clocks = [f"{step},{step * changes['rate']},{step * changes['rate']}" for step in steps]
        (folder / "timing.csv").write_text("\n".join(["step,wall_seconds,cpu_seconds", *clocks, ""]))
    return folder
