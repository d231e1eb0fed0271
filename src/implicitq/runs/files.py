"""Files, read as if they came from a stranger, and written so that they are whole or not there. Needs no JAX.

Reading is within bounds, never through a link, and runs no code; names must be such that they can be shown. What cannot
be read is an OSError or ValueError with a reason, and who knows the file puts its name in front; `read_json` and
`read_arrays` do that themselves, with an InputError.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import re
import reprlib
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors
import safetensors.numpy

from implicitq import machine
from implicitq.types import Array, InputError

DTYPES = {  # of safetensors, and of arrays; there are more of the first, which no file of ours has
    "BOOL": "bool",
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}

LARGEST_TABLE = 256 << 20  # bytes of a CSV file: a hundred times more than the longest runs have
LARGEST_JSON = 32 << 20
LARGEST_RETURN = 1e50  # beyond it, squares of scores are no numbers any more
LARGEST_STEP = 10**15
_DEAD_SECONDS = 3_600  # after which nobody is still writing a file

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")


def require_plain(path: Path) -> None:
    """Refuse what is no plain file: a link, or a pipe, on which reading would wait for ever."""
    kind = os.lstat(path).st_mode
    if stat.S_ISLNK(kind):
        raise OSError("it is a link, which is not followed")
    if not stat.S_ISREG(kind):
        raise OSError("it is not a plain file")


def read_bytes(path: Path, most: int = LARGEST_TABLE) -> bytes:
    """The whole content of a plain file that is no link; never waits, as a pipe would have it, nor fills the memory."""
    require_plain(path)
    content = read_start(path, most + 1)
    refuse_larger(len(content), most)
    return content


def refuse_larger(size: int, most: int = LARGEST_TABLE) -> None:
    if size > most:
        raise OSError(f"it is larger than {most >> 20} MB, the most that is read")


def read_start(path: Path, most: int) -> bytes:
    """The first bytes of a plain file that is no link."""
    with _open_plain(path) as file:
        return file.read(most)


def read_end(path: Path, most: int) -> bytes:
    """The last bytes of a plain file that is no link."""
    with _open_plain(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


@contextmanager
def _open_plain(path: Path) -> Iterator[BinaryIO]:
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("it is not a plain file")
        yield file


def parse_json(content: bytes) -> Any:
    """Plain data; ValueError for whatever cannot be parsed, or not be written again."""
    try:
        data = json.loads(content.decode())
        json.dumps(data, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it has a text with half a character in it") from None
    return data


def check_name(value: Any, what: str, longest: int = 120) -> str:
    """A name that can be shown, drawn, and put into a cell of a spreadsheet, where = + - @ would begin a formula."""
    good = isinstance(value, str) and 0 < len(value) <= longest and value[0].isalnum() and value.isprintable()
    if not good:
        raise InputError(
            f"{what} must be a printable name of up to {longest} characters that begins with a letter or a digit, "
            f"got {reprlib.repr(value)}"
        )
    return value


def is_file_name(text: str) -> bool:
    """Whether it can be part of a file's name, here and in the links of a page."""
    return _FILE_NAME.fullmatch(text) is not None


def check_file_name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not is_file_name(value):
        raise InputError(
            f"{what} must be a name of up to 150 letters, digits, dots, dashes and underscores that begins with a "
            f"letter or a digit, got {reprlib.repr(value)}"
        )
    return value


def refuse_links(root: Path, path: Path) -> Path:
    """`path`, which lies below `root`: neither it nor a folder on the way to it may be a link."""
    for each in (path, *path.parents):
        if each == root:
            break
        if each.is_symlink():
            raise InputError(f"{each} is a link, which is not followed; remove it, or choose another folder")
    return path


def lock(handle: int, wait: bool) -> bool:
    """Lock an open file or folder until it is closed, however the process ends; False if another process has it."""
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError:  # a disk without locks
            pass
    return True


@contextmanager
def turn_in(folder: Path) -> Iterator[None]:
    """One process at a time, in a folder that is made if need be. No file is left: it may be kept in a repository."""
    folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        lock(handle, wait=True)
        yield
    finally:
        os.close(handle)


HEADER = "implicitq"


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, flush to the disk, rename: a reader sees the old file or the new one.

    For files at places that the user chose; those of a run folder are written by `Directory`. The name of the file
    beside it is new every time, so that two processes may write at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"{glob.escape(path.name)}.????????.part"):
        with suppress(FileNotFoundError):  # another process has renamed or removed it
            if time.time() - left.lstat().st_mtime > _DEAD_SECONDS:
                left.unlink()
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
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
            names = list(file.keys())
            size = sum(_stored_bytes(name, file.get_slice(name)) for name in names)
            machine.refuse_excess(str(path), size, size)
            return {name: file.get_tensor(name) for name in names}, header
    except InputError:
        raise
    except (OSError, ValueError, TypeError, KeyError, RecursionError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} is not a file of implicitq, or is damaged: {error}") from None


def _stored_bytes(name: str, array: Any) -> int:
    dtype = str(array.get_dtype())
    if dtype not in DTYPES:
        raise ValueError(f"{name} has type {dtype}, which no array here has")
    return math.prod(array.get_shape()) * np.dtype(DTYPES[dtype]).itemsize


def digest_of(data: Any) -> str:
    """Checksum of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
