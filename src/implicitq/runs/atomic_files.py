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

from implicitq.runs.strangers import LARGEST_JSON, parse_json, read_bytes
from implicitq.types import Array, InputError

_HEADER = "implicitq"


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, flush to the disk, rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, data: Any) -> None:
    write_atomically(path, (json.dumps(data, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return parse_json(read_bytes(path, LARGEST_JSON))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def write_arrays(path: Path, arrays: dict[str, Array], header: dict[str, Any]) -> str:
    """Arrays and plain data in one safetensors file; gives its digest."""
    content = safetensors.numpy.save(
        {name: np.asarray(array, order="C") for name, array in arrays.items()}, {_HEADER: json.dumps(header)}
    )
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


def read_arrays(path: Path, digest: str | None = None) -> tuple[dict[str, Array], dict[str, Any]]:
    """Inverse of `write_arrays`; with a `digest`, refuses a file that was altered."""
    try:
        if digest is not None:
            with open(path, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    raise InputError(f"{path} was altered or cut short: its checksum is wrong")
        with safetensors.safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a file of implicitq, or is damaged: {error}") from None


def digest_of(data: Any) -> str:
    """Checksum of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
