"""Devices of JAX by name, and how it calls compiled functions on processors."""

from __future__ import annotations

import os
from typing import Any

import jax

from implicitq.types import InputError

Device = Any
"""A `jax.Device`, which type checkers do not take for a type."""


def find_device(name: str | None) -> Device | None:
    """`gpu`, `cuda:1`, `cpu:0`: a platform of JAX, and which of its devices; the first, if no number is given.

    None is where JAX puts everything that nobody has placed: the accelerator, if there is one and JAX was installed for
    it; JAX_PLATFORMS in the environment chooses.
    """
    _call_directly()
    if name is None:
        return None
    platform, _, number = name.partition(":")
    try:
        devices = jax.devices(platform) if platform else []
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
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
