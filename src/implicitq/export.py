"""The deterministic policy as an ONNX model, to run where there is no Python."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces

from implicitq.agent import Agent
from implicitq.envs.spaces import flat_size, image_of
from implicitq.machine import versions
from implicitq.runs.files import write_atomically
from implicitq.types import InputError


def export_onnx(agent: Agent, path: str | Path) -> None:
    """Write a model with one input, `observation` (float32 [batch, features], flattened), and one output, `action`.

    Of an image the features are its bytes, from 0 to 255. Normalisation of observations and the bounds of the action
    space are part of the model; action masks are not. The model's metadata says all this, by `metadata`.
    """
    try:
        from jax2onnx import to_onnx  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(
            "export needs a package that is missing; install it with: pip install 'implicitq[export]'"
        ) from None
    path, space = Path(path), agent.action_space
    act, size = agent.policy_function()
    is_image = image_of(agent.observation_space) is not None

    def model(observation):  # [B, O]
        coordinates = act(observation.astype(jnp.uint8) if is_image else observation)  # [B, D]
        if isinstance(space, gym_spaces.Box):
            low, high = (jnp.asarray(bound.reshape(1, -1), jnp.float32) for bound in (space.low, space.high))
            return low + (jnp.clip(coordinates, -1.0, 1.0) + 1.0) * 0.5 * (high - low)
        start = getattr(space, "start", 0)
        return coordinates.astype(jnp.int32) + jnp.asarray(np.reshape(start, (1, -1)), jnp.int32)

    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # it reports its own temporaries as warnings
    made = to_onnx(model, [("batch", size)], input_names=["observation"], output_names=["action"])
    for name, text in metadata(agent).items():
        entry = made.metadata_props.add()
        entry.key, entry.value = name, text
    write_atomically(path, made.SerializeToString())


def metadata(agent: Agent) -> dict[str, str]:
    """What somebody has to know who only has the model: texts by name, those of tables as JSON."""
    config = agent.config
    known = versions()
    trained = {
        "algorithm": config.algorithm,
        "env": config.env,
        "seed": config.seed,
        "step": agent.step,
        "versions": {name: known[name] for name in ("implicitq", "jax", "gymnasium")},
    }
    return {
        "implicitq.trained": json.dumps(trained),
        "implicitq.observation": json.dumps(observation_layout(agent.observation_space)),
        "implicitq.action": json.dumps(action_form(agent.action_space)),
        "implicitq.policy": "deterministic",
        "implicitq.action_masks": "not part of the model: it may choose what a mask forbids",
        "implicitq.normalization": "part of the model: give observations as the environment does",
    } | _wrapper_statistics(agent)


def _wrapper_statistics(agent: Agent) -> dict[str, str]:
    """Not part of the model: wrappers may do anything with them."""
    found = {name: array.tolist() for name, array in agent.statistics.items()}
    return {"implicitq.statistics": json.dumps(found)} if found else {}


def observation_layout(space: gym_spaces.Space) -> list[dict[str, Any]]:
    """The parts of a flat observation, in their order: where each comes from and which features it is.

    `path` leads to the part in a `Dict` or `Tuple`; `one-hot` means a 1 at the number (less `start`) and 0 elsewhere.
    """
    parts, first = [], 0
    for path, part in _parts(space, ()):
        size = flat_size(part)
        entry: dict[str, Any] = {"path": list(path), "first": first, "features": size, "space": type(part).__name__}
        match part:
            case gym_spaces.Discrete():
                entry |= {"encoding": "one-hot", "sizes": [int(part.n)], "start": [int(part.start)]}
            case gym_spaces.MultiDiscrete():
                sizes, start = part.nvec.reshape(-1).tolist(), np.reshape(part.start, -1).tolist()
                entry |= {"encoding": "one-hot", "sizes": sizes, "start": start}
            case _:
                pixels = image_of(part) is not None
                shape = list(part.shape or ())
                entry |= {"encoding": "bytes 0 to 255" if pixels else "numbers", "shape": shape, "order": "C"}
        parts.append(entry)
        first += size
    return parts


def _parts(space: gym_spaces.Space, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """All parts with their paths, in the order of `spaces.flatten`: a `Dict` by sorted names, a `Tuple` as it is."""
    match space:
        case gym_spaces.Dict():
            for name in sorted(space.keys(), key=str):
                yield from _parts(space[name], (*path, name))
        case gym_spaces.Tuple():
            for number, part in enumerate(space):
                yield from _parts(part, (*path, number))
        case _:
            yield path, space


def action_form(space: gym_spaces.Space) -> dict[str, Any]:
    """What a row of the output is: [batch, dimensions], to be brought to `shape`."""
    form: dict[str, Any] = {"space": type(space).__name__, "shape": list(space.shape or ()), "dtype": str(space.dtype)}
    match space:
        case gym_spaces.Box():
            ends = {"low": space.low.reshape(-1).tolist(), "high": space.high.reshape(-1).tolist()}
            return form | {"output": "numbers within the bounds, as env.step takes them", **ends}
        case gym_spaces.Discrete():
            sizes, start = [int(space.n)], [int(space.start)]
        case gym_spaces.MultiDiscrete():
            sizes, start = space.nvec.reshape(-1).tolist(), np.reshape(space.start, -1).tolist()
        case _:
            sizes = [2] * int(np.prod(space.shape or ()))
            start = [0] * len(sizes)
    return form | {"output": "whole numbers from start on, as env.step takes them", "sizes": sizes, "start": start}
