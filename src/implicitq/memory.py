"""How much memory this process can have, asked before it is taken. Inside of containers their limit counts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from implicitq.types import InputError

_GROUPS = Path("/sys/fs/cgroup")
_KINDS = {  # of control groups: where they are, and the files with their limit and what is in use
    "": (_GROUPS, "memory.max", "memory.current"),
    "memory": (_GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}


class Memory(NamedTuple):
    """Amounts of memory, in bytes."""

    machine: int
    limit: int  # what this process can have of it
    free: int


def refuse_excess(what: str, reserved: int, used: int) -> None:
    """Refuse `what` if there is no room for the bytes that it reserves at once, or for those that it will use of them.

    What is reserved counts against the whole machine only: a large reserve that stays empty does no harm.
    """
    found = available()
    if found is not None and (reserved > found.machine or used > found.limit):
        needed = reserved if reserved > found.machine else used
        raise InputError(
            f"{what} would take {_size(needed)} of memory; {_size(found.limit)} can be had here, of which "
            f"{_size(found.free)} are free"
        )


def available() -> Memory | None:
    """None where the system does not tell."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        machine, unused = page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    limit, free = machine, _reclaimable() or unused
    for most, used in _control_groups():
        limit, free = min(limit, most), min(free, most - used)
    return Memory(machine, limit, max(free, 0))


def _reclaimable() -> int | None:
    """What is unused or only a cache, where Linux tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _control_groups() -> Iterator[tuple[int, int]]:
    """Limit and use of every control group with a limit that this process is in."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kind, path = line.split(":", 2)
        if kind not in _KINDS:
            continue
        root, limit_file, use_file = _KINDS[kind]
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(root):
                try:
                    yield int((folder / limit_file).read_text()), int((folder / use_file).read_text())
                except (OSError, ValueError):  # not there, as seen from a container; or `max`
                    continue


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
