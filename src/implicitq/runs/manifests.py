"""The manifest of a checkpoint: what it must be like before anything in it is believed. Needs no JAX.

Its checksum has no key, so it tells of damage and not of malice: names in it are never used as paths unless they are
of the one form that is written here.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from implicitq.runs.files import digest_of, read_json
from implicitq.types import InputError

FORMAT = 1
_LARGEST = 1 << 62  # of counts
_SEGMENT = re.compile(r"[0-9]{9,18}-[0-9]{4,9}\.safetensors")
_CHECKPOINT = re.compile(r"([0-9]{9,18})\.(json|safetensors)")


def checkpoint_step(name: str) -> int | None:
    """The step that a file of a checkpoint belongs to; None for the name of any other file."""
    found = _CHECKPOINT.fullmatch(name)
    return int(found[1]) if found and found[1] == stem(int(found[1])) else None


def is_segment(name: str) -> bool:
    return _SEGMENT.fullmatch(name) is not None


def stem(step: int) -> str:
    """What the files of a checkpoint are called, but for their endings."""
    return f"{step:09d}"


def mark(content: bytes) -> dict[str, int]:
    """Length and checksum of what a log held at a checkpoint."""
    return {"size": len(content), "crc32": zlib.crc32(content)}


def read(path: Path, logs: Collection[str]) -> dict[str, Any]:
    """The manifest of a file, complete and of the right types; `logs` are the only names that its logs may have."""
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not _is_count(manifest.get("format")):
        raise InputError(f"{path} is not a checkpoint")
    if manifest["format"] > FORMAT:
        raise InputError(f"{path} has format {manifest['format']}, newer than the {FORMAT} known here")
    digest = manifest.pop("sha256", None)
    if digest != digest_of(manifest):
        raise InputError(f"{path} was altered: its checksum is wrong")
    step = checkpoint_step(path.name)
    sound = {
        "arrays": isinstance(manifest.get("arrays"), str),
        "segments": _are_segments(manifest.get("segments")),
        "logs": _are_marks(manifest.get("logs"), logs),
        "trainer": _is_trainer(manifest.get("trainer")) and step in (None, manifest["trainer"]["step"]),
        "config": isinstance(manifest.get("config", {}), dict),  # some files lack it
    }
    for part, good in sound.items():
        if not good:
            raise InputError(f"{path} has {part} that no checkpoint has")
    return manifest


def _are_marks(marks: Any, logs: Collection[str]) -> bool:
    return (
        isinstance(marks, dict)
        and marks.keys() == set(logs)
        and all(isinstance(mark, dict) and mark.keys() == {"size", "crc32"} for mark in marks.values())
        and all(_is_count(value) for mark in marks.values() for value in mark.values())
    )


def _are_segments(segments: Any) -> bool:
    return isinstance(segments, list) and all(map(_is_segment_entry, segments))


def _is_segment_entry(segment: Any) -> bool:
    return (
        isinstance(segment, dict)
        and segment.keys() == {"file", "sha256", "first", "until"}
        and isinstance(segment["file"], str)
        and is_segment(segment["file"])
        and isinstance(segment["sha256"], str)
        and _are_counts(segment["first"])
        and _are_counts(segment["until"])
        and len(segment["first"]) == len(segment["until"])
        and all(first <= until for first, until in zip(segment["first"], segment["until"], strict=True))
    )


def _is_trainer(data: Any) -> bool:
    return (
        isinstance(data, dict)
        and {"step", "episodes", "finished", "replay"} <= data.keys()
        and _are_counts([data["step"], data["episodes"]])
        and isinstance(data["finished"], list)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in data["finished"])
        and all(_is_float(total) and _is_count(length) for total, length in data["finished"])
        and _is_count(data.get("env_restarts", 0))
        and isinstance(data["replay"], dict)
        and _are_counts(data["replay"].get("written"))
        and isinstance(data["replay"].get("generator"), dict)
        and all(_are_rows(data[name], data["replay"]) for name in ("compared", "calibrated") if name in data)
        and _is_float(data.get("largest_reward", 0.0))
        and ("best" not in data or _is_best(data["best"]))
    )


def _are_rows(values: Any, replay: dict[str, Any]) -> bool:
    return _are_counts(values) and len(values) == len(replay["written"])


def _is_best(best: Any) -> bool:
    return (
        isinstance(best, dict)
        and best.keys() == {"step", "mean"}
        and _is_count(best["step"])
        and _is_float(best["mean"])
        and math.isfinite(best["mean"])
    )


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_count, values))


def _is_float(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < _LARGEST)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST
