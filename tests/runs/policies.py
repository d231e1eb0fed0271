"""Policy files with anything in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

FIXTURES = Path(__file__).parent.parent / "fixtures/layout-1"
GOOD = FIXTURES / "miq.safetensors"


def parts(path: Path = GOOD) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a policy file."""
    with safetensors.safe_open(path, framework="numpy") as file:
        return json.loads(file.metadata()["implicitq"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write(path: Path, header: Any, arrays: Mapping[str, np.ndarray]) -> Path:
    """A policy file, whatever its header is; a text stands for itself."""
    text = header if isinstance(header, str) else json.dumps(header)
    path.write_bytes(safetensors.numpy.save(dict(arrays), {"implicitq": text}))
    return path


def altered(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The good policy with a change to its header."""
    header, arrays = parts()
    change(header)
    return write(path, header, arrays)


def with_config(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda header: header["config"].update(values)


def with_space(which: str, **space: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda header: header.update({which: space})


MANY = 10**9
OVERSIZED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a layer without end": with_config(hidden=[10**18]),
    "two wide layers": with_config(hidden=[30_000, 30_000]),
    "many layers": with_config(hidden=[1] * 900),
    "many bins": with_config(bins=65_536),
    "a large choice": with_space("action_space", kind="Discrete", n=MANY, start=0, dtype="int64"),
    "a choice that just fits a file": with_space("action_space", kind="Discrete", n=10**6, start=0, dtype="int64"),
    "many large choices": with_space(
        "action_space", kind="MultiDiscrete", nvec=[10**6] * 100_000, start=[0] * 100_000, dtype="int64"
    ),
    "as many bits as a file may have": with_space("action_space", kind="MultiBinary", n=10**6),
    "a large observation": with_space("observation_space", kind="Discrete", n=MANY, start=0, dtype="int64"),
    "many bits": with_space("action_space", kind="MultiBinary", n=MANY),
    "bits on many axes": with_space("observation_space", kind="MultiBinary", n=[10**6, 10**6]),
    "sums that overflow": with_space(
        "observation_space", kind="MultiDiscrete", nvec=[2**62] * 4, start=[0] * 4, dtype="int64"
    ),
    "a huge Box": with_space(
        "observation_space", kind="Box", shape=[MANY, MANY], dtype="float32", low=["0"], high=["1"]
    ),
    "a product of many axes": with_space(
        "observation_space", kind="Box", shape=[10**18] * 100_000, dtype="float32", low=["0"], high=["1"]
    ),
}
"""Small files that ask for much memory or time."""
