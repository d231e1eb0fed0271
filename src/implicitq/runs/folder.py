"""The run folder: everything a run leaves behind. docs/run-folder.md describes it.

All clocks are in timing.csv, so that the other files of two equal runs can be compared byte for byte.
"""

from __future__ import annotations

import dataclasses
import io
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from implicitq import configs
from implicitq.configs import Config
from implicitq.envs.making import EnvironmentFailed
from implicitq.envs.statistics import Shared
from implicitq.events import CheckpointDue, Evaluated, Event, Measured, Stopped
from implicitq.machine import EVAL_ENV, TASK_PACKAGES, TOGETHER, XLA_FLAGS, unused_packages, versions
from implicitq.runs import branches, layout, policy_file
from implicitq.runs.branches import Branch
from implicitq.runs.checkpoints import Checkpoints, Loss, ReplayDamaged
from implicitq.runs.directory import PART, Directory
from implicitq.runs.files import json_bytes, read_json
from implicitq.runs.layout import (
    BEST,
    BRANCHES,
    CHECKPOINTS,
    CONFIG,
    CURVE,
    EVALUATIONS,
    EVALUATIONS_NPZ,
    LOCK,
    METRICS,
    POLICY,
    REPLAY,
    SALVAGED,
    START,
    TIMING,
    TRACKING,
    VERSIONS,
)
from implicitq.runs.logs import CLOCKS, Clock, read_clocks, read_metrics
from implicitq.train import Trainer
from implicitq.types import Array, Evaluation, InputError, OtherConditions

_FILES = (
    CONFIG,
    VERSIONS,
    METRICS,
    EVALUATIONS,
    EVALUATIONS_NPZ,
    TIMING,
    POLICY,
    BEST,
    CURVE,
    SALVAGED,
    TRACKING,
    BRANCHES,
    START,
)


class Start(NamedTuple):
    """A policy that a run begins with."""

    content: bytes  # of its file
    told: str  # where it comes from, in words


class RunFolder:
    """One run on disk, and the listener that writes it: `create` and `prepare` it, or `open` and `restore` it."""

    def __init__(self, directory: Path, config: Config, together: Sequence[int] = ()) -> None:
        """`together`: the seeds that are trained in step in this process, if there are more than this one."""
        self.directory = directory
        self._together = together
        self.config = config
        self._files = Directory(directory, LOCK, (CHECKPOINTS, REPLAY))
        self._checkpoints = Checkpoints(self._files)
        self._clock = Clock(0.0, 0.0, max(1, len(together)))
        self._trainer: Trainer | None = None  # known from `prepare` or `restore` on
        self._metrics: list[str] = []  # columns of metrics.csv, likewise

    @staticmethod
    def create(
        directory: str | Path,
        config: Config,
        start: Start | None = None,
        together: Sequence[int] = (),
        eval_env: str | None = None,
    ) -> RunFolder:
        """A fresh folder; one that already holds a run is refused. `start`: the policy that the run begins with."""
        directory = Path(directory)
        if layout.has_run(directory):
            raise InputError(
                f"{directory} already holds a run; go on with: implicitq resume {directory}, or choose another --out"
            )
        early = (VERSIONS, START, BRANCHES)  # written before the config, by a process that may have died at once
        begun = {LOCK, f"{CONFIG}{PART}", *early, *(f"{name}{PART}" for name in early)}
        found = {path.name for path in directory.iterdir()} - begun if directory.is_dir() else set()
        if found & set(layout.TRACES):
            raise InputError(
                f"{directory} holds a run that has lost its {CONFIG}; put it back, or choose another --out"
            )
        if found or (directory.exists() and not directory.is_dir()):
            raise InputError(f"{directory} is not an empty folder; choose another --out")
        directory.mkdir(parents=True, exist_ok=True)
        run = RunFolder(directory, config, together)
        with run._closed_on_failure():
            run._files.write(VERSIONS, json_bytes(versions(together, config.env, eval_env)))
            if start is not None:
                run._files.write(START, start.content)
                run._files.write(BRANCHES, json_bytes(branches.to_file([branches.begun_with(start.told)])))
            run.replan(config)
        return run

    @staticmethod
    def open(directory: str | Path, together: Sequence[int] = ()) -> RunFolder:
        directory = Path(directory)
        try:
            config = layout.read_config(directory)
        except InputError as error:
            raise InputError(f"{directory} is not a run folder: {error}") from None
        run = RunFolder(directory, config, together)
        with run._closed_on_failure():
            run._files.refuse_others((*_FILES, *(f"{name}{PART}" for name in _FILES)))
            run._checkpoints.check_config(config, branches.taken(branches.read(directory), config))
        return run

    def replan(self, config: Config) -> None:
        """Keep a changed config, as when a run is to go on beyond its planned end."""
        self.config = config
        self._files.write(CONFIG, json_bytes(configs.to_file(config)))

    @property
    def tracking(self) -> Any:
        """What `note_tracking` was given last, as the file has it; None if it was never called."""
        return read_json(self.directory / TRACKING) if TRACKING in self._files.files() else None

    def note_tracking(self, choice: dict[str, Any]) -> None:
        """Keep which trackers the run has. It is no part of the config, since nothing that is learnt depends on it."""
        if choice != self.tracking:
            self._files.write(TRACKING, json_bytes(choice))

    def branch(self, config: Config) -> Branch | None:
        """Go on with other settings; noted if any of them changes the result, and the run is past its start."""
        assert self._trainer is not None
        new = branches.between(self.config, config, self._trainer.step)
        if new is not None and self._trainer.step > 0:
            noted = branches.taken(branches.read(self.directory), self.config)
            self._files.write(BRANCHES, json_bytes(branches.to_file([*noted, new])))
        self.replan(config)
        if self._trainer.step > 0:
            self._write_policy(self._trainer)
            self._write_best(self._trainer)
        return new

    def _move_branches(self, step: int) -> None:
        """After a return to an earlier checkpoint, branches noted after it hold from there on."""
        noted = branches.taken(branches.read(self.directory), self.config)
        moved = [branch._replace(step=min(step, branch.step)) for branch in noted]
        if moved != noted:
            self._files.write(BRANCHES, json_bytes(branches.to_file(moved)))

    def prepare(self, trainer: Trainer) -> None:
        """Make the subfolders and the headers of the logs; called once per run, before its first step."""
        self._trainer = trainer
        self._files.make_subfolders()
        self._metrics = ["step", *trainer.metric_names]
        headers = {
            METRICS: self._metrics,
            EVALUATIONS: layout.evaluation_columns(self.config.eval_episodes),
            TIMING: CLOCKS,
        }
        for name, header in headers.items():
            self._files.write(name, _line(header))

    def on_event(self, event: Event) -> None:
        """Store what an event brings."""
        match event:
            case Measured():
                known = {"step": event.step, **event.values}
                self._append(METRICS, [known.get(name, np.nan) for name in self._metrics])
                self._note_time(event.step)
            case Evaluated():
                done = event.evaluation
                summary = [done.step, done.mean, done.std, float(np.mean(done.lengths))]
                self._append(EVALUATIONS, [*summary, *done.returns, *done.lengths])
                self._write_npz()
                assert self._trainer is not None
                if self._trainer.best is not None and self._trainer.best.step == done.step:
                    self._write_best(self._trainer)
            case CheckpointDue():
                assert self._trainer is not None
                self._checkpoint(self._trainer)
            case Stopped():
                self._draw_curve()

    def _checkpoint(self, trainer: Trainer) -> None:
        """Everything that is needed to go on from here, and the policy as it is."""
        self._checkpoints.save(trainer, self.config)
        self._write_policy(trainer)
        self._note_time(trainer.step)  # from where the clocks go on if the run does

    def restore(self, trainer: Trainer, salvage: bool = False, among: Collection[int] | None = None) -> None:
        """Bring the trainer to the newest good checkpoint; to the start if there is none yet.

        With `salvage`, if none is good, to the newest one of which only rows of the replay are damaged, without these.
        With `among`, only to one of these steps; later ones are forgotten.
        """
        steps = [step for step in self._checkpoints.steps() if among is None or step in among]
        if not steps:
            if among is not None:
                self._forget_first_steps()
            self._begin_again(trainer)
            return
        reasons, loss = [], None
        for step in reversed(steps):
            try:
                self._checkpoints.restore(trainer, step)
                break
            except EnvironmentFailed:  # which is not the fault of the checkpoint
                raise
            except InputError as error:
                reasons.append(error)
        else:
            step, loss = self._salvaged(trainer, steps[::-1], reasons, salvage)
        for later in [each for each in self._checkpoints.steps() if each > step]:
            (self._checkpoints.reject if later in steps else self._checkpoints.forget)(later)
        if loss is not None:
            self._note_loss(loss)
        elif reasons:
            warnings.warn(f"{_list(reasons)}. Going on from step {step} instead.", stacklevel=2)
        self._trainer = trainer
        # A run that an earlier version began goes on with the columns that it has.
        self._metrics = self._files.read(METRICS).split(b"\n", 1)[0].decode(errors="replace").split(",")
        self._move_branches(step)
        self._finish_what_was_left(trainer)

    def _forget_first_steps(self) -> None:
        """Clear a run that has to begin again, because others trained with it have no checkpoint yet."""
        for step in self._checkpoints.steps():
            self._checkpoints.forget(step)
        for name in {POLICY, BEST} & {*self._files.files()}:
            self._files.remove(name)

    def _begin_again(self, trainer: Trainer) -> None:
        if (self.directory / POLICY).exists():  # it is written after the first checkpoint
            raise InputError(
                f"the checkpoints of {self.directory} are gone, so it cannot be trained on; "
                f"its policy is whole: implicitq evaluate {self.directory}"
            )
        self.prepare(trainer)
        self._write_best(trainer)
        if START in self._files.files():
            start = policy_file.read(self.directory / START)
            trainer.begin_with(start.actor.arrays(), start.statistics)

    def _salvaged(
        self, trainer: Trainer, steps: list[int], reasons: list[InputError], salvage: bool
    ) -> tuple[int, Loss]:
        """The step and the loss of the newest checkpoint whose damage is in the replay alone, if that is accepted."""
        only_replay = [step for step, why in zip(steps, reasons, strict=True) if isinstance(why, ReplayDamaged)]
        if only_replay and salvage:
            return only_replay[0], self._checkpoints.salvage(trainer, only_replay[0])
        way_out = "; to go on without the rows of the replay that are damaged: --salvage" if only_replay else ""
        raise InputError(f"no checkpoint of {self.directory} can be used: {_list(reasons)}{way_out}")

    def _note_loss(self, loss: Loss) -> None:
        """Say what is lost, and keep it in the folder: the run is no longer what its seed gives."""
        noted = read_json(self.directory / SALVAGED) if (self.directory / SALVAGED).exists() else []
        entries = [*(noted if isinstance(noted, list) else []), dataclasses.asdict(loss)]
        self._files.write(SALVAGED, json_bytes(entries))
        warnings.warn(
            f"{loss.rows:,} of the {loss.of_rows:,} rows of the replay at step {loss.step} are lost "
            f"({', '.join(loss.segments)}). The run goes on from there without them, so it will differ from one that "
            f"was never damaged; {SALVAGED} says so.",
            stacklevel=2,
        )

    def _finish_what_was_left(self, trainer: Trainer) -> None:
        """Write what a sudden death right after the checkpoint left undone."""
        self._checkpoints.prune(self.config)
        known = {f"{name}{PART}" for name in _FILES}
        for name in self._files.files():
            if name in known:
                self._files.remove(name)
        self._write_policy(trainer)
        self._write_best(trainer)
        self._cut_timing(trainer.step)
        self._write_npz()
        self._draw_curve()

    def check_exactness(self, eval_env: str | None = None) -> None:
        """Refuse to go on where the same bits cannot be expected, or not from the same evaluations."""
        try:
            then = layout.read_versions(self.directory) or {}
            now = versions(self._together, self.config.env, eval_env)
        except InputError as error:
            raise InputError(f"{self.directory}: {error}") from None
        unknown = set(TASK_PACKAGES) - then.keys()  # runs of earlier versions have not recorded them
        used = {*now, TOGETHER, XLA_FLAGS, EVAL_ENV} - unused_packages(self.config.env) - unknown
        changed = sorted(name for name in used if then.get(name) != now.get(name))
        if changed:
            listed = ", ".join(f"{name} {then.get(name)} -> {now.get(name)}" for name in changed)
            remedy = "set them back"
            if changed == [TOGETHER] and not self._together:
                remedy = f"go on with all these seeds (implicitq resume {self.directory.parent})"
            elif changed == [EVAL_ENV]:
                remedy = "evaluate where it was evaluated (in Python: resume(directory, eval_env=...))"
            raise OtherConditions(
                f"the run began under other conditions ({listed}), so it cannot go on exactly as if never "
                f"interrupted; {remedy}, or accept it with --inexact"
            )

    def evaluations(self) -> list[Evaluation]:
        """All evaluations so far, oldest first."""
        return layout.read_evaluations(self.directory)

    @property
    def closed(self) -> bool:
        return self._files.closed

    def close(self) -> None:
        self._files.close()

    @contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        """Close the folder if the block fails: otherwise it would stay locked in this process."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _append(self, name: str, values: Iterable[Any]) -> None:
        self._files.append(name, _line(values))

    def _note_time(self, step: int) -> None:
        self._append(TIMING, [step, *self._clock.read()])

    def _write_policy(self, trainer: Trainer) -> None:
        self._files.write(
            POLICY, self._policy(trainer, trainer.learner.shipped.arrays(), trainer.step, trainer.envs.statistics)
        )

    def _write_best(self, trainer: Trainer) -> None:
        """The best policy so far; after a return to a checkpoint, the best until then, which may be none."""
        if trainer.best is not None:
            best = trainer.best
            self._files.write(BEST, self._policy(trainer, best.arrays, best.step, best.statistics))
        elif BEST in self._files.files():
            self._files.remove(BEST)

    def _policy(self, trainer: Trainer, arrays: dict[str, Array], step: int, shared: Shared) -> bytes:
        spaces = trainer.envs.observation_space, trainer.envs.action_space
        return policy_file.content(self.config, *spaces, arrays, step, shared)

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
        self._files.write(EVALUATIONS_NPZ, buffer.getvalue())

    def _draw_curve(self) -> None:
        from implicitq.runs.curve import learning_curve  # slow to import, and wanted once per run

        done = self.evaluations()
        if done:
            title = f"{self.config.algorithm} on {self.config.env}, seed {self.config.seed}"
            self._files.write(CURVE, learning_curve(title, done, read_metrics(self.directory)))

    def _cut_timing(self, step: int) -> None:
        """Forget the clocks after `step`, and let them go on from there; what cannot be read is left out."""
        rows, whole = read_clocks(self._files.read(TIMING))
        if not whole:
            warnings.warn(f"{self.directory / TIMING} was damaged; its clocks go on from what is left", stacklevel=2)
        kept = [row for row in rows if row.step <= step]
        self._files.write(TIMING, b"".join(map(_line, [CLOCKS, *kept])))
        if kept:
            self._clock = Clock(kept[-1].wall, kept[-1].cpu, max(1, len(self._together)))


def _line(values: Iterable[Any]) -> bytes:
    return (",".join(repr(v) if isinstance(v, float) else str(v) for v in values) + "\n").encode()


def _list(reasons: list[InputError]) -> str:
    return "; ".join(dict.fromkeys(map(str, reasons)))  # checkpoints share segments, and so their damage
