"""Compiled functions are kept in the user's cache folder, so that the next start need not compile them again.

JAX keeps and finds them. What is here chooses the folder, keeps it small, and clears away what cannot be read.
Nothing depends on the cache: where it cannot be used, functions are compiled afresh, to the same bits. Needs no JAX.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import sys
import time
from pathlib import Path

VARIABLE = "IMPLICITQ_CACHE"
"""An environment variable: `off`, or another folder than the user's own."""

_JAX_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_JAX_SETTINGS = {  # small functions count: a start compiles dozens of them
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
_LARGEST = 128 * 2**20  # bytes of all entries together; one of them has about 10,000
_BEING_WRITTEN = 60  # seconds; what is younger may be unreadable because another process is just writing it
_COMPLAINT = re.compile(r"Error (?:reading|writing) persistent compilation cache entry for '(\w+)")


def use_cache(wanted: bool = True) -> Path | None:
    """Tell JAX, which must not be imported yet, where to keep what it compiles; gives the folder, None if nowhere.

    JAX reads its settings from the environment, so processes that are started from here inherit them. A folder that
    the user has chosen for JAX stays as it is.
    """
    chosen = os.environ.get(_JAX_FOLDER)
    if chosen is not None and not _is_ours(Path(chosen)):
        return None
    os.environ.pop(_JAX_FOLDER, None)
    if not wanted:
        os.environ[VARIABLE] = "off"  # for processes that are started from here
    root = _root()
    if root is None or not _is_safe(root / _conditions()):
        return None
    _bound(root)
    os.environ |= {_JAX_FOLDER: str(root / _conditions()), **_JAX_SETTINGS}
    return root / _conditions()


def is_about_cache(warning: str) -> bool:
    """Whether a warning says that an entry could not be read or written. Nobody needs to know: it is made anew.

    What cannot be read is removed, since JAX would never overwrite it.
    """
    found = _COMPLAINT.match(warning)
    folder = os.environ.get(_JAX_FOLDER)
    if found is None or folder is None:
        return False
    if _is_ours(Path(folder)):
        for path in Path(folder).glob(f"{found[1]}-*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _BEING_WRITTEN:
                    path.unlink()
    return True


def show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    """For `warnings.showwarning` in processes of ours: one line for the user, and none about the cache."""
    from implicitq.validation import printable  # slow to import, and help needs none of it

    if not is_about_cache(str(message)):
        plain = re.sub(r"\x1b\[[0-9;]*m", "", str(message)).removeprefix("WARN: ")  # Gymnasium's come coloured
        print("warning:", printable(plain, kept="\n"), file=sys.stderr)


def _root() -> Path | None:
    """None where the cache is switched off, and for users without a home."""
    given = os.environ.get(VARIABLE, "")
    if given.lower() in ("off", "0", "no", "false", "none"):
        return None
    if given:
        return Path(given).expanduser().absolute()
    own = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(own) if os.path.isabs(own) else Path.home() / ".cache") / "implicitq" / "compiled"
    except RuntimeError:
        return None


def _conditions() -> str:
    """What compiled code depends on that the keys of JAX may not hold: a home folder can be that of many machines.

    Instructions that the processor has, and the number of threads, by which XLA divides the work.
    """
    try:
        told = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        kind = "".join(line for line in told if line.split("\t")[0] in ("model name", "flags", "Features", "CPU part"))
    except OSError:
        kind = platform.processor()
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return hashlib.sha256(f"{platform.machine()} {kind} {threads}".encode()).hexdigest()[:16]


def _is_ours(folder: Path) -> bool:
    return folder.parent == _root()


def _is_safe(folder: Path) -> bool:
    """Whether it can be written to, and by this user alone: what lies in it is code that will run."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stat = folder.stat()
    except OSError:
        return False
    owner = getattr(os, "geteuid", lambda: stat.st_uid)()
    return stat.st_uid == owner and not stat.st_mode & 0o022 and os.access(folder, os.W_OK | os.X_OK)


def _bound(root: Path) -> None:
    """Remove the entries that were not used for longest until a quarter of the room is free again."""
    with contextlib.suppress(OSError):  # such as of another process that does the same
        entries = [(path, path.stat()) for path in root.glob("*/*")]
        size = sum(stat.st_size for _, stat in entries)
        if size <= _LARGEST:
            return
        for path, stat in sorted(entries, key=lambda entry: max(entry[1].st_atime, entry[1].st_mtime)):
            path.unlink(missing_ok=True)
            size -= stat.st_size
            if size <= 0.75 * _LARGEST:
                return
