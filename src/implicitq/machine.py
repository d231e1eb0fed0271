"""What a run finds where it runs: versions and processor, memory, devices. Needs no JAX until a device is asked for."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from implicitq.types import InputError

TOGETHER = "seeds_together"
XLA_FLAGS = "xla_flags"
EVAL_ENV = "eval_env"
OF_THE_PROCESS = ("processor", "threads", TOGETHER, XLA_FLAGS)
"""What the bits of a result depend on besides versions of packages: how the run was made."""

PACKAGES = ("implicitq", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "mujoco")
_TASKS = {"AdroitHand": ("gymnasium-robotics",), "dm_control/": ("dm-control", "shimmy")}  # by a part of their ids
TASK_PACKAGES = tuple(name for names in _TASKS.values() for name in names)
"""Packages that tasks come from, recorded with runs on these tasks alone."""

Device = Any
"""A `jax.Device`, which type checkers do not take for a type."""

_GROUPS = Path("/sys/fs/cgroup")
_KINDS = {  # of control groups: where they are, and the files with their limit and what is in use
    "": (_GROUPS, "memory.max", "memory.current"),
    "memory": (_GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}


class Memory(NamedTuple):
    """Amounts of memory, in bytes. Inside of containers their limit counts."""

    machine: int
    limit: int  # what this process can have of it
    free: int


def versions(together: Sequence[int] = (), env: str = "", eval_env: str | None = None) -> dict[str, Any]:
    """Versions and machine of this process, as versions.json of a run on `env` keeps them.

    `together` are the seeds that it trains in step; `eval_env` is where it is evaluated, if not on `env`.
    """
    of_task = (name for part, names in _TASKS.items() if part in env for name in names)
    return {
        "python": platform.python_version(),
        **{package: version_of(package) for package in (*PACKAGES, *of_task)},
        "system": platform.system(),
        "processor": _processor(),
        "threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        **({TOGETHER: list(together)} if len(together) > 1 else {}),
        **({XLA_FLAGS: os.environ["XLA_FLAGS"]} if os.environ.get("XLA_FLAGS") else {}),
        **({EVAL_ENV: eval_env} if eval_env is not None else {}),
    }


def version_of(package: str) -> str | None:
    """Of what is installed; None if it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def unused_packages(env: str) -> frozenset[str]:
    """Packages that do not count for a task: those of other tasks, and MuJoCo for what Gymnasium has without it."""
    import gymnasium as gym  # slow to import

    entry = gym.registry.get(env)
    place = "" if entry is None else str(entry.entry_point)
    own = place.startswith("gymnasium.envs.") and ".mujoco" not in place
    of_others = {name for part, names in _TASKS.items() if part not in env for name in names}
    return frozenset(of_others | {"mujoco"} if own else of_others)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def python(*arguments: str) -> list[str]:
    """A command that runs Python with these arguments: `-m` or `-c`, and what follows.

    It imports from the working folder only if this process does, too: the folder may be that of a stranger.
    """
    here = {"", os.getcwd()} & set(sys.path)
    return [sys.executable, *(() if here else ("-P",)), *arguments]


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
    """The memory of this machine; None if the system does not say."""
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
    """Bytes of memory that are unused or only cache; None unless on Linux."""
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


def find_device(name: str | None) -> Device | None:
    """`gpu`, `cuda:1`, `cpu:0`: a platform of JAX, and which of its devices; the first, if no number is given.

    None is where JAX puts everything that nobody has placed: the accelerator, if there is one and JAX was installed for
    it; JAX_PLATFORMS in the environment chooses.
    """
    import jax  # slow to import

    _call_directly()
    if name is None:
        return None
    kind, _, number = name.partition(":")
    try:
        devices = jax.devices(kind) if kind else []
    except RuntimeError:
        devices = []
    if number == "" and ":" not in name and devices:
        return devices[0]
    if number.isdecimal() and int(number) < len(devices):
        return devices[int(number)]
    known = ", ".join(f"{device.platform}:{device.id}" for device in jax.devices())
    raise InputError(f"there is no device {name!r} here; JAX has {known}")


def _call_directly() -> None:
    """In a process that has one processor, compiled functions run in the thread that calls them.

    JAX would hand them to another thread, so that Python can go on meanwhile. On one processor nothing can, and the way
    there and back takes longer than to act once. Without effect where JAX is in use already.
    """
    import jax

    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
