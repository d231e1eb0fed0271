"""Checkpoints of a run: what changed is written, what is there is checked.

`checkpoints/STEP.safetensors` holds the arrays, `checkpoints/STEP.json` the rest; the latter is written last and
makes the checkpoint count. Rows of the replay go to `replay/` in segments that are written once and never touched
again; a checkpoint lists those that it needs. Every file is checked by its SHA-256 before it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicitq.configs import Config
from implicitq.runs import manifests
from implicitq.runs.branches import Branch
from implicitq.runs.directory import PART, Directory
from implicitq.runs.files import array_bytes, digest_of, json_bytes, read_arrays
from implicitq.runs.layout import CHECKPOINTS, CONFIG, LOGS, REPLAY, checkpoint_steps
from implicitq.runs.manifests import FORMAT, checkpoint_step, is_segment, mark, stem
from implicitq.runs.settings import changed_since, lasting
from implicitq.train import Trainer, under
from implicitq.types import Array, InputError

_KEEP = 2  # the newest, and one to fall back to
_SEGMENT_ROWS = 1 << 16  # at most, and fewer of images:
_SEGMENT_BYTES = 1 << 26  # a segment is in memory as a whole, beside the replay


class ReplayDamaged(InputError):
    """A segment of the replay is damaged, so the run cannot go on exactly; the rest may be intact."""


@dataclass(frozen=True)
class Loss:
    """What a salvaged run has lost."""

    step: int
    rows: int  # of the replay
    of_rows: int
    segments: tuple[str, ...]  # files with these rows, and possibly some that had left the replay


class Checkpoints:
    """The checkpoints below one run folder."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._segments: list[dict[str, Any]] = []  # in the replay as of the last checkpoint

    def steps(self) -> list[int]:
        """Steps with a checkpoint, oldest first."""
        return checkpoint_steps(self._directory.path)

    def save(self, trainer: Trainer, plan: Config) -> None:
        """Save a checkpoint; `plan` says at which steps there are checkpoints if nobody stops the run."""
        arrays, data = trainer.state()
        segments = self._new_segments(trainer, plan)
        digest = self._write_arrays(f"{CHECKPOINTS}/{stem(trainer.step)}.safetensors", arrays)
        manifest = {
            "format": FORMAT,
            "arrays": digest,
            "segments": segments,
            "logs": {name: mark(self._directory.read(name)) for name in LOGS},
            "config": lasting(trainer.config),
            "trainer": data,
        }
        sealed = {**manifest, "sha256": digest_of(manifest)}
        self._directory.write(f"{CHECKPOINTS}/{stem(trainer.step)}.json", json_bytes(sealed))
        self._segments = segments
        self.prune(plan)

    def check_config(self, config: Config, branches: Sequence[Branch] = ()) -> None:
        """Refuse a config that differs from that of the newest checkpoint in more than the branches say."""
        for step in reversed(self.steps()):
            try:
                saved = self._manifest(step).get("config")
            except InputError:
                continue  # `restore` says what is wrong with it
            for branch in branches:
                if saved and branch.step >= step:
                    saved |= {name: after for name, (_, after) in branch.changes.items()}
            changed = changed_since(saved, config) if saved else ""
            if changed:
                raise InputError(
                    f"{self._directory.path / CONFIG} was changed after the checkpoint at step {step} ({changed}); "
                    "set it back, or begin a new run"
                )
            return

    def restore(self, trainer: Trainer, step: int) -> None:
        """Bring the trainer to the checkpoint at `step` and cut the logs back to it; InputError if it is no good."""
        manifest, arrays = self._checked(trainer, step)
        trainer.replay.clear()  # of rows from a checkpoint that turned out to be damaged half-way
        for segment in manifest["segments"]:
            rows = self._rows(segment)
            trainer.replay.restore_rows(rows, np.array(segment["first"]), np.array(segment["until"]))
        trainer.restore(arrays, manifest["trainer"])
        self._segments = manifest["segments"]
        self._cut_logs(manifest)

    def salvage(self, trainer: Trainer, step: int) -> Loss:
        """As `restore`, without the segments of the replay that are damaged."""
        manifest, arrays = self._checked(trainer, step)
        data, replay = manifest["trainer"], trainer.replay
        replay.clear()
        lost = []
        for segment in manifest["segments"]:
            try:
                replay.append_rows(self._rows(segment), np.subtract(segment["until"], segment["first"]))
            except InputError:
                replay.end_at_gap()
                lost.append(segment)
        trainer.restore(arrays, {**data, "replay": {**data["replay"], "written": replay.written.tolist()}})
        self._segments = []  # rows have other numbers now: the next checkpoint writes them all
        self._cut_logs(manifest)
        written = np.array(data["replay"]["written"])
        oldest = np.maximum(0, written - replay.most_rows)
        rows = sum(int(np.maximum(0, np.subtract(s["until"], np.maximum(s["first"], oldest))).sum()) for s in lost)
        return Loss(step, rows, int((written - oldest).sum()), tuple(s["file"] for s in lost))

    def reject(self, step: int) -> None:
        """Set a checkpoint aside, so that it is not tried again."""
        for name in self._directory.files(CHECKPOINTS):
            if checkpoint_step(name.removeprefix(f"{CHECKPOINTS}/")) == step:
                self._directory.rename(name, ".rejected")

    def forget(self, step: int) -> None:
        """Remove a checkpoint that the run does not go on from."""
        for name in self._directory.files(CHECKPOINTS):
            if checkpoint_step(name.removeprefix(f"{CHECKPOINTS}/")) == step:
                self._directory.remove(name)

    def prune(self, plan: Config) -> None:
        """Drop checkpoints but the newest ones, segments that none of these needs, and what was left half-written.

        Those of a stop between two planned ones go with the next planned one: no trace of the stop shall stay.
        """
        steps = self.steps()
        planned = [step for step in steps if _is_planned(step, plan)][-_KEEP:]
        kept = {*planned, *[step for step in steps if step > max(planned, default=-1)][-_KEEP:]}
        for path in self._directory.files(CHECKPOINTS):
            name = path.removeprefix(f"{CHECKPOINTS}/")
            step = checkpoint_step(name.removesuffix(PART))
            if step is not None and (step not in kept or name.endswith(PART)):
                self._directory.remove(path)
        needed = set()
        for step in kept:
            try:
                needed |= {segment["file"] for segment in self._manifest(step)["segments"]}
            except InputError:
                continue
        for path in self._directory.files(REPLAY):
            name = path.removeprefix(f"{REPLAY}/")
            if is_segment(name.removesuffix(PART)) and name not in needed:
                self._directory.remove(path)

    def _checked(self, trainer: Trainer, step: int) -> tuple[dict[str, Any], dict[str, Array]]:
        """The manifest and the arrays of a checkpoint, if these fit the trainer and the logs."""
        manifest = self._manifest(step)
        arrays, _ = read_arrays(self._directory.path / CHECKPOINTS / f"{stem(step)}.safetensors", manifest["arrays"])
        for name, then in manifest["logs"].items():
            if mark(self._directory.read(name)[: then["size"]]) != then:
                raise InputError(f"{self._directory.path / name} is not as it was at step {step}")
        config = trainer.config
        for segment in manifest["segments"]:
            rows = np.subtract(segment["until"], segment["first"])
            if rows.shape != (config.num_envs,) or (rows > config.replay_size).any():
                raise InputError(f"the checkpoint at step {step} has a replay of another size than its config")
        _check_arrays(trainer, arrays)
        if "best" in manifest["trainer"]:
            trainer.learner.shipped.check(under("best.", arrays))
        _check_generator(manifest["trainer"]["replay"]["generator"])
        return manifest, arrays

    def _rows(self, segment: dict[str, Any]) -> dict[str, Array]:
        try:
            return read_arrays(self._directory.path / REPLAY / segment["file"], segment["sha256"])[0]
        except InputError as error:
            raise ReplayDamaged(str(error)) from None

    def _cut_logs(self, manifest: dict[str, Any]) -> None:
        for name, then in manifest["logs"].items():
            self._directory.cut(name, then["size"])

    def _manifest(self, step: int) -> dict[str, Any]:
        return manifests.read(self._directory.path / CHECKPOINTS / f"{stem(step)}.json", LOGS)

    def _new_segments(self, trainer: Trainer, plan: Config) -> list[dict[str, Any]]:
        """Write the rows that came since the last checkpoint; list all segments that the replay now consists of."""
        replay = trainer.replay
        oldest, written = replay.oldest, replay.written
        segments = [s for s in self._segments if np.any(np.array(s["until"]) > oldest)]
        while segments and _is_planned(trainer.step, plan) and not _is_planned(_step_of(segments[-1]), plan):
            segments.pop()  # of a stop: its rows go to the segment that they would be in without it
        first = np.maximum(segments[-1]["until"] if segments else 0, oldest)
        row = max(1, replay.nbytes // trainer.config.replay_size)
        chunk = max(1, min(_SEGMENT_ROWS, _SEGMENT_BYTES // row) // len(written))
        while np.any(first < written):
            until = np.minimum(first + chunk, written)
            name = f"{stem(trainer.step)}-{len(segments):04d}.safetensors"
            digest = self._write_arrays(f"{REPLAY}/{name}", replay.rows(first, until))
            segments.append({"file": name, "sha256": digest, "first": first.tolist(), "until": until.tolist()})
            first = until
        return segments

    def _write_arrays(self, name: str, arrays: dict[str, Array]) -> str:
        """Write arrays to a file; gives its checksum."""
        content = array_bytes(arrays, {"format": FORMAT})
        self._directory.write(name, content)
        return hashlib.sha256(content).hexdigest()


def _is_planned(step: int, plan: Config) -> bool:
    """Whether a run has a checkpoint at this step if nobody stops it."""
    return step // plan.checkpoint_every > (step - plan.num_envs) // plan.checkpoint_every or step >= plan.steps


def _step_of(segment: dict[str, Any]) -> int:
    """The step of the checkpoint that a segment was written with."""
    return int(segment["file"].split("-")[0])


def _check_arrays(trainer: Trainer, arrays: dict[str, Array]) -> None:
    """Check the arrays that are not the learner's; the learner checks its own."""
    number, actions = trainer.config.num_envs, trainer.envs.action_space
    expected = {
        "returns": ("float64", (number,)),
        "lengths": ("int64", (number,)),
        "envs.episodes": ("int64", (number,)),
        "observations": (trainer.spec.observation_dtype, (number, trainer.spec.observation_size)),
    }
    if "masks" in arrays:
        expected["masks"] = ("uint8", (number, *(trainer.spec.mask_shape or ())))
    for name, (kind, shape) in expected.items():
        found = arrays.get(name)
        if found is None or found.shape != shape or found.dtype != kind:
            raise InputError(f"the checkpoint has no {name} of {kind}{list(shape)}")
    if (arrays["envs.episodes"] < 0).any():
        raise InputError("the checkpoint has an episode with a number below 0")
    for index in range(number):
        taken = arrays.get(f"envs.actions.{index}")
        if taken is None or taken.shape[1:] != (actions.shape or ()) or taken.dtype.kind not in "fiu":
            raise InputError(f"the checkpoint has no actions of environment {index} that it takes")


def _check_generator(state: dict[str, Any]) -> None:
    try:
        np.random.default_rng(0).bit_generator.state = state
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise InputError(f"the checkpoint has a state of the generator that cannot be used: {error}") from None
