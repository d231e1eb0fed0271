"""The deterministic policy as an ONNX model, to run where there is no Python."""

from __future__ import annotations

import logging
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces

from implicitq.agent import Agent
from implicitq.envs.spaces import image_of
from implicitq.runs.atomic_files import write_atomically
from implicitq.types import InputError


def export_onnx(agent: Agent, path: Path) -> None:
    """Write a model with one input, `observation` (float32 [batch, features], flattened), and one output, `action`.

    Of an image the features are its bytes, from 0 to 255. Normalisation of observations and the bounds of the action
    space are part of the model; action masks are not.
    """
    try:
        from jax2onnx import to_onnx  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(
            "export needs a package that is missing; install it with: pip install 'implicitq[export]'"
        ) from None
    space = agent.action_space
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
    write_atomically(path, made.SerializeToString())
