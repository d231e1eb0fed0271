"""Devices of JAX by name."""

from __future__ import annotations

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
