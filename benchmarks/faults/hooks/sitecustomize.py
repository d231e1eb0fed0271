"""On the path of a process that is to die at a write: SIGKILL at one exact change to the files below a folder.

Python imports a module of this name at its start. FAULT_BELOW names the folder, FAULT_AT the number of the change:
opening a file to write, its new content on the way to the disk (of which half arrives), renaming, removing, making a
folder.
"""

from __future__ import annotations

import os
import signal
from typing import Any

_BELOW = os.environ.get("FAULT_BELOW", "")
_AT = int(os.environ.get("FAULT_AT", "0"))
_seen = 0
_sizes: dict[int, int] = {}  # of files when they were opened: what was on the disk by then stays there


def _place(path: Any, handle: int | None) -> str:
    folder = os.getcwd() if handle is None else os.readlink(f"/proc/self/fd/{handle}")
    return os.path.join(folder, os.fspath(path))


def _is_due(place: str) -> bool:
    global _seen
    _seen += place.startswith(_BELOW)
    return place.startswith(_BELOW) and _seen == _AT


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _dying(name: str, folder: str = "dir_fd") -> None:
    real = getattr(os, name)

    def changed(path: Any, *rest: Any, **options: Any) -> Any:
        writes = name != "open" or (rest and rest[0] & (os.O_WRONLY | os.O_RDWR))
        if writes and _is_due(_place(path, options.get(folder))):
            _die()
        given = real(path, *rest, **options)
        if name == "open":
            _sizes[given] = os.fstat(given).st_size
        return given

    setattr(os, name, changed)


def _flush(handle: int) -> None:
    if _is_due(os.readlink(f"/proc/self/fd/{handle}")):
        before = _sizes.get(handle, 0)
        os.ftruncate(handle, before + (os.fstat(handle).st_size - before) // 2)
        _die()
    _fsync(handle)


if _BELOW:
    _fsync = os.fsync
    os.fsync = _flush
    supported = os.supports_dir_fd
    for each in ("open", "unlink", "mkdir"):
        _dying(each)
    _dying("replace", "src_dir_fd")
    os.supports_dir_fd = {*supported, os.open}  # which is asked by function
