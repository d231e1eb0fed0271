"""Checkpoints of a run: what changed is written, what is there is checked.

`checkpoints/STEP.safetensors` holds the arrays, `checkpoints/STEP.json` the rest; the latter is written last and
makes the checkpoint count. Rows of the replay go to `replay/` in segments that are written once and never touched
again; a checkpoint lists those that it needs. Every file is checked by its SHA-256 before it is used.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from implicitq.runs.atomic_files import digest_of, read_arrays, read_json, write_arrays, write_json
from implicitq.runs.layout import CHECKPOINTS, REPLAY, checkpoint_steps
from implicitq.train import Trainer
from implicitq.types import InputError

FORMAT = 1
_KEEP = 2  # the newest, and one to fall back to
_SEGMENT_ROWS = 1 << 16


class Checkpoints:
    """The checkpoints below one run folder."""

    def __init__(self, directory: Path, logs: tuple[str, ...]) -> None:
        """`logs` are append-only files of the folder, cut back to the checkpoint on restoring."""
        self._directory = directory
        self._logs = logs
        self._segments: list[dict[str, Any]] = []  # in the replay as of the last checkpoint

    def steps(self) -> list[int]:
        """Steps with a checkpoint, oldest first."""
        return checkpoint_steps(self._directory)

    def save(self, trainer: Trainer) -> None:
        arrays, data = trainer.state()
        segments = self._new_segments(trainer)
        stem = f"{trainer.step:09d}"
        digest = write_arrays(self._path(f"{CHECKPOINTS}/{stem}.safetensors"), arrays, {"format": FORMAT})
        manifest = {
            "format": FORMAT,
            "arrays": digest,
            "segments": segments,
            "logs": {name: self._log_mark(name) for name in self._logs},
            "trainer": data,
        }
        write_json(self._path(f"{CHECKPOINTS}/{stem}.json"), {**manifest, "sha256": digest_of(manifest)})
        self._segments = segments
        self.prune()

    def restore(self, trainer: Trainer, step: int) -> None:
        """Bring the trainer to the checkpoint at `step` and cut the logs back to it; InputError if it is no good."""
        manifest = self._manifest(step)
        arrays, _ = read_arrays(self._path(f"{CHECKPOINTS}/{step:09d}.safetensors"), manifest["arrays"])
        for name, mark in manifest["logs"].items():
            if self._log_mark(name, mark["size"]) != mark:
                raise InputError(f"{self._path(name)} is not as it was at step {step}")
        trainer.replay.clear()  # of rows from a checkpoint that turned out to be damaged half-way
        for segment in manifest["segments"]:
            rows, _ = read_arrays(self._path(f"{REPLAY}/{segment['file']}"), segment["sha256"])
            trainer.replay.restore_rows(rows, np.array(segment["first"]), np.array(segment["until"]))
        trainer.restore(arrays, manifest["trainer"])
        self._segments = manifest["segments"]
        for name, mark in manifest["logs"].items():
            with open(self._path(name), "r+b") as file:
                file.truncate(mark["size"])

    def reject(self, step: int) -> None:
        """Set a checkpoint aside, so that it is not tried again."""
        for path in (self._directory / CHECKPOINTS).glob(f"{step:09d}.*"):
            path.rename(path.with_name(path.name + ".rejected"))

    def _manifest(self, step: int) -> dict[str, Any]:
        path = self._path(f"{CHECKPOINTS}/{step:09d}.json")
        manifest = read_json(path)
        if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
            raise InputError(f"{path} is not a checkpoint")
        if manifest["format"] > FORMAT:
            raise InputError(f"{path} has format {manifest['format']}, newer than the {FORMAT} known here")
        digest = manifest.pop("sha256", None)
        if digest != digest_of(manifest):
            raise InputError(f"{path} was altered: its checksum is wrong")
        return manifest

    def _new_segments(self, trainer: Trainer) -> list[dict[str, Any]]:
        """Write the rows that came since the last checkpoint; list all segments that the replay now consists of."""
        replay = trainer.replay
        oldest, written = replay.oldest, replay.written
        segments = [s for s in self._segments if np.any(np.array(s["until"]) > oldest)]
        first = np.maximum(segments[-1]["until"] if segments else 0, oldest)
        chunk = max(1, _SEGMENT_ROWS // len(written))
        while np.any(first < written):
            until = np.minimum(first + chunk, written)
            name = f"{trainer.step:09d}-{len(segments):04d}.safetensors"
            digest = write_arrays(self._path(f"{REPLAY}/{name}"), replay.rows(first, until), {"format": FORMAT})
            segments.append({"file": name, "sha256": digest, "first": first.tolist(), "until": until.tolist()})
            first = until
        return segments

    def prune(self) -> None:
        """Drop checkpoints but the newest ones, and segments that none of these needs."""
        steps = self.steps()
        kept = {f"{step:09d}" for step in steps[-_KEEP:]}
        for path in (self._directory / CHECKPOINTS).glob("?????????.*"):  # also what a sudden death left half done
            if path.name.split(".")[0] not in kept and path.suffix != ".rejected":
                path.unlink()
        needed = {segment["file"] for segment in self._segments}
        for step in steps[-_KEEP:-1]:
            try:
                needed |= {segment["file"] for segment in self._manifest(step)["segments"]}
            except InputError:
                continue
        for path in (self._directory / REPLAY).glob("*.safetensors"):
            if path.name not in needed:
                path.unlink()

    def _log_mark(self, name: str, size: int | None = None) -> dict[str, int]:
        """Length and checksum of the first `size` bytes of a log."""
        path = self._path(name)
        content = path.read_bytes()[:size] if path.exists() else b""
        return {"size": len(content), "crc32": zlib.crc32(content)}

    def _path(self, name: str) -> Path:
        return self._directory / name
