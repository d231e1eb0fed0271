"""A policy in one file: its arrays, and in the header its config and spaces. Loading it never runs code."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gymnasium import Space

from implicitq import configs
from implicitq.configs import Config
from implicitq.envs import spaces
from implicitq.learner import Actor
from implicitq.runs.atomic_files import array_bytes, read_arrays, write_atomically
from implicitq.types import Array, InputError

FORMAT = 1


class PolicyFile(NamedTuple):
    config: Config
    observation_space: Space
    action_space: Space
    arrays: dict[str, Array]
    step: int


def save(path: Path, config: Config, observation_space: Space, action_space: Space, actor: Actor, step: int) -> None:
    write_atomically(path, content(config, observation_space, action_space, actor, step))


def content(config: Config, observation_space: Space, action_space: Space, actor: Actor, step: int) -> bytes:
    header = {
        "kind": "policy",
        "format": FORMAT,
        "step": step,
        "config": configs.to_json(config),
        "observation_space": spaces.describe(observation_space),
        "action_space": spaces.describe(action_space),
    }
    return array_bytes(actor.arrays(), header)


def read(path: Path) -> PolicyFile:
    if not path.is_file():
        raise InputError(f"there is no policy file {path}")
    arrays, header = read_arrays(path)
    if header.get("kind") != "policy":
        raise InputError(f"{path} is not a policy file")
    if header["format"] > FORMAT:
        raise InputError(f"{path} has format {header['format']}, newer than the {FORMAT} known here")
    return PolicyFile(
        configs.from_json(header["config"]),
        spaces.rebuild(header["observation_space"]),
        spaces.rebuild(header["action_space"]),
        arrays,
        header["step"],
    )
