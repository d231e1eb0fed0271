"""The one way in which a run folder is written.

A run folder may come from a stranger, and may vanish under a run. So everything in it is reached through handles of
the folder and of its two subfolders: no link is followed, nothing but regular files is touched, and once the folder
was removed or replaced nothing more is written. The folder itself may be reached through a link.
"""

from __future__ import annotations

import gc
import os
import stat
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from implicitq.runs.files import LARGEST_TABLE, lock, refuse_larger
from implicitq.types import InputError

PART = ".part"  # ends the name of a file that is being written
_LARGEST = 16 * LARGEST_TABLE  # bytes, of a log: no run may end because it wrote much
_HANDLES = os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")  # not on Windows, where paths have to do
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)


_held: set[tuple[int, int]] = set()  # lock files that this process holds


class Directory:
    """A folder that this process alone writes, until `close`. Names are `file` or `subfolder/file`."""

    def __init__(self, path: Path, lock: str, subfolders: tuple[str, ...]) -> None:
        """`lock` names the file that says who writes; `subfolders` those that may be in names."""
        self.path = path
        self.closed = False
        self._subfolders = subfolders
        self._handles: dict[str, int] = {}  # by subfolder; "" is the folder itself
        self._lock_name = lock
        self._locks: list[int] = []  # the one that is held, if it is
        self._release = weakref.finalize(self, _release, self._handles, self._locks)  # also if nobody closes it
        self._release.atexit = False
        if _HANDLES:
            self._handles[""] = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._take_lock()
            self._enter_subfolders()
        except BaseException:
            self.close()
            raise

    def make_subfolders(self) -> None:
        """Make subfolders that are missing; the folder itself is never made again."""
        self._check_still_there()
        for name in self._subfolders:
            if self._kind(name) is None:
                with self._about(name, "made"):
                    os.mkdir(self._at(name), dir_fd=self._handle(name))
        self._enter_subfolders()

    def write(self, name: str, content: bytes) -> None:
        """Write beside the target, flush to the disk, rename: a reader sees the old file or the new one."""
        self._check_still_there()
        self._require_regular(name)
        left = self._require_regular(name + PART)  # by a process that died
        part, handle = self._at(name + PART), self._handle(name)
        with self._about(name, "written"):
            if left:
                os.unlink(part, dir_fd=handle)
            try:
                self._put(name + PART, os.O_EXCL | os.O_CREAT, content)
                os.replace(part, self._at(name), src_dir_fd=handle, dst_dir_fd=handle)
            except OSError:
                if self._kind(name + PART) is not None:
                    os.unlink(part, dir_fd=handle)
                raise

    def append(self, name: str, content: bytes) -> None:
        """Add to a file that is there, and flush to the disk."""
        self._check_still_there()
        self._require_regular(name)
        with self._about(name, "written"):
            self._put(name, os.O_APPEND, content)

    def cut(self, name: str, size: int) -> None:
        """Keep the first bytes of a file. A new file replaces it, so other hard links to the old one stay whole."""
        content = self.read(name)
        if len(content) > size:
            self.write(name, content[:size])

    def read(self, name: str) -> bytes:
        """All of a table; nothing if there is none."""
        if not self._require_regular(name):
            return b""
        with self._about(name, "read"):
            handle = os.open(self._at(name), os.O_RDONLY | _NO_LINK | _BINARY, dir_fd=self._handle(name))
            with open(handle, "rb") as file:
                refuse_larger(os.fstat(handle).st_size, _LARGEST)
                return file.read()

    def remove(self, name: str) -> None:
        self._check_still_there()
        with self._about(name, "removed"):
            os.unlink(self._at(name), dir_fd=self._handle(name))

    def rename(self, name: str, ending: str) -> None:
        """Put an ending behind the name of a file."""
        self._check_still_there()
        handle = self._handle(name)
        with self._about(name, "renamed"):
            os.replace(self._at(name), self._at(name + ending), src_dir_fd=handle, dst_dir_fd=handle)

    def files(self, subfolder: str = "") -> list[str]:
        """Names of all files; links and folders are none."""
        folder = f"{subfolder}/" if subfolder else ""
        if subfolder and self._kind(subfolder) is None:
            return []
        place = self._handles.get(subfolder, self.path / subfolder)
        names = [f"{folder}{name}" for name in os.listdir(place)]
        return sorted(name for name in names if stat.S_ISREG(self._kind(name) or 0))

    def refuse_others(self, names: tuple[str, ...]) -> None:
        """InputError if one of these, or something in a subfolder, is there and not a regular file."""
        for name in names:
            self._require_regular(name)
        for subfolder in self._subfolders:
            if self._kind(subfolder) is not None:
                for name in os.listdir(self._handles.get(subfolder, self.path / subfolder)):
                    self._require_regular(f"{subfolder}/{name}")

    def close(self) -> None:
        self._release()
        self.closed = True

    def _put(self, name: str, how: int, content: bytes) -> None:
        flags = os.O_WRONLY | how | _NO_LINK | _BINARY
        with open(os.open(self._at(name), flags, 0o666, dir_fd=self._handle(name)), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def _take_lock(self) -> None:
        """Two processes must not write one run; the lock goes with the process, however it ends."""
        if sys.platform == "win32":
            return
        self._require_regular(self._lock_name)
        with self._about(self._lock_name, "made"):
            flags = os.O_RDWR | os.O_CREAT | _NO_LINK
            handle = os.open(self._at(self._lock_name), flags, 0o666, dir_fd=self._handle(self._lock_name))
        taken, mine = lock(handle, wait=False), _inode(handle) in _held
        if not taken and mine:
            gc.collect()  # an agent that nobody has any more may still hold it
            taken = lock(handle, wait=False)
        if not taken:
            os.close(handle)
            if mine:
                raise InputError(
                    f"this process already has {self.path} open; close the agent that trains there first "
                    "(agent.close(), or `with ... as agent`)"
                )
            raise InputError(f"another process is training in {self.path}")
        _held.add(_inode(handle))
        self._locks.append(handle)

    def _check_still_there(self) -> None:
        """The path must still lead to the lock that this process holds: others may have taken the folder's place."""
        if self.closed:
            raise InputError(f"{self.path} was closed; nothing more is written")
        if not self._locks:
            return
        try:
            found, held = os.stat(self.path / self._lock_name), os.fstat(self._locks[0])
        except OSError:
            found = held = None
        if found is None or held is None or (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino):
            raise InputError(f"{self.path} was removed or replaced while a run was writing it; nothing more is written")

    def _enter_subfolders(self) -> None:
        for name in self._subfolders:
            kind = self._kind(name)
            if kind is not None and not stat.S_ISDIR(kind):
                raise InputError(f"{self.path / name} is {_word(kind)}; a run folder has a folder there")
            if _HANDLES and kind is not None and name not in self._handles:
                flags = os.O_RDONLY | os.O_DIRECTORY | _NO_LINK
                with self._about(name, "opened"):
                    self._handles[name] = os.open(name, flags, dir_fd=self._handles[""])

    def _require_regular(self, name: str) -> bool:
        """Whether there is such a file; InputError if something else has its name."""
        kind = self._kind(name)
        if kind is not None and not stat.S_ISREG(kind):
            raise InputError(f"{self.path / name} is {_word(kind)}; a run folder has a plain file there")
        return kind is not None

    def _kind(self, name: str) -> int | None:
        """File mode of what has this name, without following links; None if nothing has it."""
        try:
            return os.stat(self._at(name), dir_fd=self._handle(name), follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None

    def _at(self, name: str) -> str | Path:
        """The name to use together with the handle of the folder."""
        return name.rpartition("/")[2] if _HANDLES else self.path / name

    def _handle(self, name: str) -> int | None:
        """The handle of the folder that a file is in; None where there are no handles."""
        if not _HANDLES:
            return None
        subfolder = name.rpartition("/")[0]
        if subfolder not in self._handles:
            raise InputError(f"{self.path / subfolder} is missing")
        return self._handles[subfolder]

    @contextmanager
    def _about(self, name: str, what: str) -> Iterator[None]:
        """Name the file in errors of the disk, which do not always do so."""
        try:
            yield
        except OSError as error:
            raise InputError(f"{self.path / name} cannot be {what}: {error.strerror or error}") from error


def _release(handles: dict[str, int], locks: list[int]) -> None:
    _held.difference_update(map(_inode, locks))
    for handle in (*handles.values(), *locks):
        os.close(handle)
    handles.clear()
    locks.clear()


def _inode(handle: int) -> tuple[int, int]:
    found = os.fstat(handle)
    return found.st_dev, found.st_ino


def _word(kind: int) -> str:
    return "a symbolic link" if stat.S_ISLNK(kind) else "a folder" if stat.S_ISDIR(kind) else "not a plain file"
