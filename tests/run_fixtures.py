"""Runs for tests: suites that take seconds, folders of runs that never ran, a finished run and copies to damage."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import implicitq
from implicitq import configs
from implicitq.reports import figures
from implicitq.sweeps import sweep
from implicitq.sweeps.studies import Plan, PlannedRun, Study, Variant, expand
from implicitq.sweeps.suites import Suite
from toys import SMALL

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


_SUITE = """
tasks = {tasks}
algorithms = {algorithms}
[settings]
steps = {steps}
hidden = [8]
min_replay = 20
batch_size = 8
replay_size = 10_000
bins = 3
eval_every = {every}
eval_episodes = 1
checkpoint_every = {every}
log_every = 20
"""


@pytest.fixture
def suite_file(tmp_path) -> Callable[..., Path]:
    """Writes a suite whose runs take seconds."""

    def write(name: str, tasks: list[str], algorithms: list[str], steps: int, every: int) -> Path:
        path = tmp_path / f"{name}.toml"
        text = _SUITE.format(tasks=json.dumps(tasks), algorithms=json.dumps(algorithms), steps=steps, every=every)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def tiny_suite(suite_file) -> Path:
    return suite_file("tiny", ["Pendulum-v1"], ["iq"], 120, 40)


@pytest.fixture
def long_suite(suite_file) -> Path:
    """Long enough to be stopped in the middle."""
    return suite_file("long", ["Pendulum-v1"], ["iq", "miq"], 3_000, 200)


@pytest.fixture
def workers_see_toys(monkeypatch, tmp_path_factory):
    """Processes of a sweep find tests/toys.py, and share what they compile."""
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """Figures are made but not rendered, which takes nine tenths of a report's time: for tests of its texts."""
    monkeypatch.setattr(figures, "to_file", lambda figure, form: b"")
    monkeypatch.setattr(figures, "to_svg", lambda figure, name, label: "<svg></svg>")


def sweep_plan() -> Plan:
    study = Study("small", "", tuple(map(Variant, ("iq", "miq", "sac"))))
    return expand(study, Suite("boxes", ("Pendulum-v1", "InvertedPendulum-v5")), 3, 10_000)


def write_sweep(root: Path) -> Path:
    """A whole sweep: 2 tasks, 3 lines, 3 seeds; SAC 200, M-IQ 150, IQ 100 above the random policy's 0."""
    plan = sweep_plan()
    for run in plan.runs:
        write_run(root, run, {"sac": 200, "miq": 150, "iq": 100}[run.algorithm])
    sweep.save_plan(root, plan, ["--study", "small", "--out", "sweep"])
    entry = {"mean": 0.0, "std": 1.0, "episodes": 100, "seed": 0, "versions": ENVIRONMENTS}
    (root / "random-scores.json").write_text(json.dumps(dict.fromkeys(plan.tasks, entry)))
    return root


@pytest.fixture
def small_plan() -> Plan:
    return sweep_plan()


@pytest.fixture
def finished_sweep(tmp_path) -> Path:
    return write_sweep(tmp_path / "sweep")


FIXTURES = Path(__file__).parent / "fixtures/layout-1"


@pytest.fixture(scope="session")
def layout_1(tmp_path_factory) -> Path:
    """Run folders and policy files of the first layout, and what the policies answered."""
    directory = Path(shutil.copytree(FIXTURES, tmp_path_factory.mktemp("fixtures") / "layout-1"))
    shutil.unpack_archive(directory / "runs.zip", directory)
    return directory


@pytest.fixture(scope="session")
def finished_toy(tmp_path_factory) -> Path:
    """A run of 120 steps with checkpoints every 40; the last two are kept."""
    directory = tmp_path_factory.mktemp("checkpoints") / "run"
    implicitq.make("miq", "toys:Toy-v0", **SMALL).learn(out=directory).close()
    return directory


@pytest.fixture
def run(finished_toy, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(finished_toy, tmp_path / "run"))
