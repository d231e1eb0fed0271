"""Files that are either whole or not there, and array files that cannot run code."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from implicitq.runs.strangers import LARGEST_JSON, parse_json, read_bytes, require_plain
from implicitq.types import Array, InputError

HEADER = "implicitq"


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, flush to the disk, rename: a reader sees the old file or the new one.

    For files at places that the user chose; those of a run folder are written by `Directory`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.unlink(missing_ok=True)  # left by a process that died, or a link to somewhere else
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk does not know which file


def write_json(path: Path, data: Any) -> None:
    write_atomically(path, json_bytes(data))


def json_bytes(data: Any) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()


def read_json(path: Path) -> Any:
    try:
        return parse_json(read_bytes(path, LARGEST_JSON))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def array_bytes(arrays: dict[str, Array], header: dict[str, Any]) -> bytes:
    """Arrays and plain data as one safetensors file."""
    return safetensors.numpy.save(
        {name: np.asarray(array, order="C") for name, array in arrays.items()}, {HEADER: json.dumps(header)}
    )


def read_arrays(path: Path, digest: str | None = None) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays and the header of a file of `array_bytes`; with a `digest`, refuses one that was altered."""
    try:
        require_plain(path)
        if digest is not None:
            with open(path, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    raise InputError(f"{path} was altered or cut short: its checksum is wrong")
        with safetensors.safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {})[HEADER])
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118
    except InputError:
        raise
    except (OSError, ValueError, TypeError, KeyError, RecursionError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} is not a file of implicitq, or is damaged: {error}") from None


def digest_of(data: Any) -> str:
    """Checksum of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
