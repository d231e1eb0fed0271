"""What the bits of a result depend on besides the config: versions of packages, processor, threads, stacked seeds.

Needs no JAX.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOGETHER = "seeds_together"
XLA_FLAGS = "xla_flags"
OF_THE_PROCESS = ("processor", "threads", TOGETHER, XLA_FLAGS)
"""Not versions, but how the run was made."""

PACKAGES = ("implicitq", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "mujoco")


def versions(together: Sequence[int] = ()) -> dict[str, Any]:
    """Versions and machine of this process, as versions.json of a run keeps them.

    `together` are the seeds that it trains in step.
    """
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return {
        "python": platform.python_version(),
        **found,
        "system": platform.system(),
        "processor": _processor(),
        "threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        **({TOGETHER: list(together)} if len(together) > 1 else {}),
        **({XLA_FLAGS: os.environ["XLA_FLAGS"]} if os.environ.get("XLA_FLAGS") else {}),
    }


def unused_packages(env: str) -> frozenset[str]:
    """Packages that a task certainly does not use: only known of those that Gymnasium itself brings."""
    import gymnasium as gym  # slow to import

    entry = gym.registry.get(env)
    place = "" if entry is None else str(entry.entry_point)
    own = place.startswith("gymnasium.envs.") and ".mujoco" not in place
    return frozenset({"mujoco"}) if own else frozenset()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
