"""A policy in one file: its arrays, and in the header its config and spaces. Loading it never runs code.

The file may come from a stranger, or be damaged: what its header says is compared with the names, types and shapes of
its arrays before any of them is read, and a digest and a look at the numbers follow before any of them acts.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
from gymnasium import Space

from implicitq import algorithms, configs, machine
from implicitq.configs import Config
from implicitq.envs import space_data, spaces, statistics
from implicitq.envs.statistics import Shared
from implicitq.learner import Actor, Stored, least_parameters, load_actor
from implicitq.machine import Device
from implicitq.runs.files import DTYPES, HEADER, array_bytes, write_atomically
from implicitq.types import Array, InputError
from implicitq.validation import brief

FORMAT = 2  # 1 is the same without a digest

_STATISTICS = "statistics."  # before the names of these arrays
_LONGEST_HEADER = 2**23  # bytes: bounds of about 200,000 features


class PolicyFile(NamedTuple):
    config: Config
    observation_space: Space
    action_space: Space
    actor: Actor
    step: int
    statistics: Shared  # of the wrappers of its training environments


def save(
    path: Path,
    config: Config,
    observation_space: Space,
    action_space: Space,
    actor: Actor,
    step: int,
    shared: Shared,
) -> None:
    write_atomically(path, content(config, observation_space, action_space, actor.arrays(), step, shared))


def content(
    config: Config, observation_space: Space, action_space: Space, arrays: dict[str, Array], step: int, shared: Shared
) -> bytes:
    """The bytes of a policy file; `arrays` are those of an actor, `shared` the statistics that it was trained with."""
    header = {
        "kind": "policy",
        "format": FORMAT,
        "step": step,
        "config": configs.to_json(config),
        "observation_space": space_data.describe(observation_space),
        "action_space": space_data.describe(action_space),
    }
    if len(json.dumps(header)) > _LONGEST_HEADER // 2:  # the file's own form of it is longer
        raise InputError("the spaces have too many dimensions for a policy file")
    arrays = arrays | {f"{_STATISTICS}{name}": array for name, array in shared.items()}
    return array_bytes(arrays, {**header, "digest": _digest(header, arrays)})


def read(path: Path, device: Device | None = None) -> PolicyFile:
    """The policy of a file, on a device; one sentence about any file that is none, or is damaged."""
    if not path.is_file():
        raise InputError(f"there is no policy file {path}")
    try:
        with open(path, "rb") as start:
            if int.from_bytes(start.read(8), "little") > _LONGEST_HEADER:
                raise ValueError(f"its header would be longer than {_LONGEST_HEADER:,} bytes")
        with safetensors.safe_open(path, framework="numpy") as file:
            return _read(file, device)
    except InputError as error:
        raise InputError(f"{path} cannot be used as a policy: {error}") from None
    except (OSError, ValueError, KeyError, RecursionError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} is not a file of implicitq, or is damaged: {error}") from None


def _read(file: Any, device: Device | None) -> PolicyFile:
    header = _checked_header(json.loads((file.metadata() or {})[HEADER]))
    config = configs.from_json(header["config"])
    configs.refuse_outdated(header["config"])
    observation_space, action_space = (space_data.rebuild(header[f"{of}_space"]) for of in ("observation", "action"))
    spec = spaces.for_torso(spaces.spec_of(observation_space, action_space), config.torso)
    found = {name: _stored(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118
    weights = {name: array for name, array in found.items() if not name.startswith(_STATISTICS)}
    for name in found.keys() - weights.keys():  # weights are compared with those of the config
        if found[name].dtype not in DTYPES.values():
            raise InputError(f"{name} has type {found[name].dtype}, which no array here has")
    held, needed = _numbers(weights), least_parameters(config, spec)
    if needed > held:
        raise InputError(f"its config and spaces stand for at least {needed:,} weights, but it holds {held:,}")

    def arrays() -> dict[str, Array]:
        size = 4 * held + 8 * (_numbers(found) - held)
        machine.refuse_excess("the policy", size, size)
        return _checked_arrays({name: file.get_tensor(name) for name in found}, header)

    actor = load_actor(algorithms.build(config, spec), spec, config, weights, arrays, device)
    shared = {name.removeprefix(_STATISTICS): file.get_tensor(name) for name in found.keys() - weights.keys()}
    return PolicyFile(
        config, observation_space, action_space, actor, header["step"], statistics.checked(dict(sorted(shared.items())))
    )


def _numbers(arrays: Mapping[str, Stored]) -> int:
    return sum(math.prod(array.shape) for array in arrays.values())


def _stored(array: Any) -> Stored:
    name = str(array.get_dtype())
    return Stored(tuple(array.get_shape()), DTYPES.get(name, name))


def _checked_header(header: Any) -> dict[str, Any]:
    if not isinstance(header, dict) or header.get("kind") != "policy":
        raise InputError("it is no policy file")
    form: Any = header.get("format")
    if not _is_whole(form) or not 1 <= form <= FORMAT:
        raise InputError(f"it has format {brief(form)}, known here are 1 to {FORMAT}")
    missing = [name for name in ("step", "config", "observation_space", "action_space") if name not in header]
    missing += ["digest"] if form > 1 and "digest" not in header else []
    if missing:
        raise InputError(f"its header has no {missing[0]}")
    if not _is_whole(header["step"]) or header["step"] < 0:
        raise InputError(f"its step must be a whole number of at least 0, got {brief(header['step'])}")
    return header


def _checked_arrays(arrays: dict[str, Array], header: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays, if they match the digest and are finite; else refused."""
    if header["format"] > 1 and _digest(header, arrays) != header["digest"]:
        raise InputError("it was altered or damaged: its checksum is wrong")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"{name} has a weight that is not finite")
    return arrays


def _digest(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    """Checksum of everything in the file."""
    told = {name: value for name, value in header.items() if name != "digest"}
    layout = [[name, str(arrays[name].dtype), list(arrays[name].shape)] for name in sorted(arrays)]
    total = hashlib.sha256(json.dumps([told, layout], sort_keys=True).encode())
    for name in sorted(arrays):
        total.update(np.ascontiguousarray(arrays[name]).data)
    return total.hexdigest()


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
