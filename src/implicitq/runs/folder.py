"""The run folder: everything a run leaves behind. docs/run-folder.md describes it.

All clocks are in timing.csv, so that the other files of two equal runs can be compared byte for byte.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import os
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from implicitq import configs
from implicitq.configs import Config
from implicitq.envs.making import EnvironmentFailed
from implicitq.events import CheckpointDue, Evaluated, Event, Measured, Stopped
from implicitq.runs import layout, policy_file
from implicitq.runs.atomic_files import read_json, write_atomically, write_json
from implicitq.runs.checkpoints import Checkpoints
from implicitq.runs.layout import CONFIG, CURVE, EVALUATIONS, EVALUATIONS_NPZ, LOCK, METRICS, POLICY, TIMING, VERSIONS
from implicitq.train import Trainer
from implicitq.types import Evaluation, InputError

_LOGS = (METRICS, EVALUATIONS)
_PACKAGES = ("implicitq", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "mujoco")


def versions() -> dict[str, Any]:
    """What the bits of a result depend on besides the config."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return {
        "python": platform.python_version(),
        **found,
        "system": platform.system(),
        "processor": _processor(),
        "threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


class RunFolder:
    """One run on disk, and the listener that writes it: `create` and `prepare` it, or `open` and `restore` it."""

    def __init__(self, directory: Path, config: Config) -> None:
        self.directory = directory
        self.config = config
        self._checkpoints = Checkpoints(directory, _LOGS)
        self._clock = _Clock(0.0, 0.0)
        self._lock = _lock(directory)
        self._trainer: Trainer | None = None  # known from `prepare` or `restore` on

    @staticmethod
    def create(directory: str | Path, config: Config) -> RunFolder:
        """A fresh folder; one that already holds a run is refused."""
        directory = Path(directory)
        if layout.has_run(directory):
            raise InputError(
                f"{directory} already holds a run; go on with: implicitq resume {directory}, or choose another --out"
            )
        begun = {LOCK, VERSIONS, f"{VERSIONS}.part", f"{CONFIG}.part"}  # by a process that died at once
        if directory.exists() and (not directory.is_dir() or {path.name for path in directory.iterdir()} - begun):
            raise InputError(f"{directory} is not an empty folder; choose another --out")
        directory.mkdir(parents=True, exist_ok=True)
        run = RunFolder(directory, config)
        write_json(directory / VERSIONS, versions())
        run.replan(config)
        return run

    @staticmethod
    def open(directory: str | Path) -> RunFolder:
        directory = Path(directory)
        try:
            config = layout.read_config(directory)
        except InputError as error:
            raise InputError(f"{directory} is not a run folder: {error}") from None
        return RunFolder(directory, config)

    def replan(self, config: Config) -> None:
        """Keep a changed config, as when a run is to go on beyond its planned end."""
        self.config = config
        write_json(self.directory / CONFIG, configs.to_file(config))

    def prepare(self, trainer: Trainer) -> None:
        """Write the headers of the logs; called once per run, before its first step."""
        self._trainer = trainer
        headers = {
            METRICS: ["step", *trainer.metric_names],
            EVALUATIONS: layout.evaluation_columns(self.config.eval_episodes),
            TIMING: ["step", "wall_seconds", "cpu_seconds"],
        }
        for name, header in headers.items():
            write_atomically(self.directory / name, _line(header))

    def on_event(self, event: Event) -> None:
        """Store what an event brings."""
        match event:
            case Measured():
                self._append(METRICS, [event.step, *event.values.values()])
                self._note_time(event.step)
            case Evaluated():
                done = event.evaluation
                summary = [done.step, done.mean, done.std, float(np.mean(done.lengths))]
                self._append(EVALUATIONS, [*summary, *done.returns, *done.lengths])
                self._write_npz()
            case CheckpointDue():
                assert self._trainer is not None
                self._checkpoint(self._trainer)
            case Stopped():
                self._draw_curve()

    def _checkpoint(self, trainer: Trainer) -> None:
        """Everything that is needed to go on from here, and the policy as it is."""
        self._checkpoints.save(trainer)
        self._write_policy(trainer)
        self._note_time(trainer.step)  # from where the clocks go on if the run does

    def restore(self, trainer: Trainer) -> None:
        """Bring the trainer to the newest good checkpoint; to the start if there is none yet."""
        steps = self._checkpoints.steps()
        reasons = []
        for step in reversed(steps):
            try:
                self._checkpoints.restore(trainer, step)
            except EnvironmentFailed:  # which is not the fault of the checkpoint
                raise
            except (InputError, KeyError) as error:
                reasons.append(f"{error}")
                continue
            for bad in steps[steps.index(step) + 1 :]:
                self._checkpoints.reject(bad)
            if reasons:
                warnings.warn(f"{'; '.join(reasons)}. Going on from step {step} instead.", stacklevel=2)
            # Whatever a sudden death after the checkpoint left undone.
            self._checkpoints.prune()
            self._trainer = trainer
            self._write_policy(trainer)
            self._cut_timing(step)
            self._write_npz()
            self._draw_curve()
            return
        if steps:
            raise InputError(f"no checkpoint of {self.directory} can be used: {'; '.join(reasons)}")
        self.prepare(trainer)

    def check_exactness(self) -> None:
        """Refuse to go on where the same bits cannot be expected."""
        then, now = read_json(self.directory / VERSIONS), versions()
        changed = [f"{name} {then.get(name)} -> {now[name]}" for name in now if then.get(name) != now[name]]
        if changed:
            raise InputError(
                f"the run began under other conditions ({', '.join(changed)}), so it cannot go on exactly as if "
                "never interrupted; set them back, or accept it with --inexact"
            )

    def evaluations(self) -> list[Evaluation]:
        """All evaluations so far, oldest first."""
        return layout.read_evaluations(self.directory)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _append(self, name: str, values: list[Any]) -> None:
        with open(self.directory / name, "ab") as file:
            file.write(_line(values))
            file.flush()
            os.fsync(file.fileno())  # a checkpoint relies on what the logs hold

    def _note_time(self, step: int) -> None:
        self._append(TIMING, [step, *self._clock.read()])

    def _write_policy(self, trainer: Trainer) -> None:
        spaces = trainer.envs.observation_space, trainer.envs.action_space
        policy_file.save(self.directory / POLICY, self.config, *spaces, trainer.learner.shipped, trainer.step)

    def _write_npz(self) -> None:
        """The schema of Stable-Baselines3's EvalCallback."""
        done = self.evaluations()
        buffer = io.BytesIO()
        np.savez(
            buffer,
            timesteps=np.array([e.step for e in done]),
            results=np.array([e.returns for e in done]),
            ep_lengths=np.array([e.lengths for e in done]),
        )
        write_atomically(self.directory / EVALUATIONS_NPZ, buffer.getvalue())

    def _draw_curve(self) -> None:
        from implicitq.runs.curve import learning_curve  # slow to import, and wanted once per run

        done = self.evaluations()
        if done:
            title = f"{self.config.algorithm} on {self.config.env}, seed {self.config.seed}"
            learning_curve(self.directory / CURVE, title, done)

    def _cut_timing(self, step: int) -> None:
        """Forget the clocks after `step`, and let them go on from there."""
        with open(self.directory / TIMING, newline="") as file:
            header, *rows = csv.reader(file)
        kept = [row for row in rows if int(row[0]) <= step]
        write_atomically(self.directory / TIMING, b"".join(map(_line, [header, *kept])))
        if kept:
            self._clock = _Clock(float(kept[-1][1]), float(kept[-1][2]))


class _Clock:
    """Wall and CPU seconds of the run, over all its sessions."""

    def __init__(self, wall: float, cpu: float) -> None:
        self._wall, self._cpu = wall - time.monotonic(), cpu - time.process_time()

    def read(self) -> tuple[float, float]:
        return round(self._wall + time.monotonic(), 3), round(self._cpu + time.process_time(), 3)


def _line(values: list[Any]) -> bytes:
    return (",".join(repr(v) if isinstance(v, float) else str(v) for v in values) + "\n").encode()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _lock(directory: Path) -> int | None:
    """Two processes must not write one run; the lock goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise InputError(f"another process is training in {directory}") from None
    return handle
