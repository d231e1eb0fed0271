"""A film of the deterministic policy at work."""

from __future__ import annotations

import ctypes.util
import importlib.util
import io
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from implicitq.agent import Agent
from implicitq.envs import spaces
from implicitq.envs.adapter import Adapter
from implicitq.envs.making import failures_named, screenless
from implicitq.envs.vector import VIDEO, episode_seed
from implicitq.runs.files import write_atomically
from implicitq.types import Array, InputError


def record(
    agent: Agent, path: str | Path, *, episodes: int = 1, seed: int | None = None, most_frames: int = 2_000
) -> float:
    """Play episodes and write them as .gif or .mp4; gives the mean return of those shown."""
    path = Path(path)
    if path.suffix not in (".gif", ".mp4"):
        raise InputError(f"the video file must end in .gif or .mp4, got {path.name}")
    if episodes < 1:
        raise InputError(f"episodes must be a whole number of at least 1, got {episodes}")
    writer = _mp4 if path.suffix == ".mp4" else _gif
    if writer is _mp4:
        _imageio()
    chosen = renderer()
    if chosen is not None:
        os.environ["MUJOCO_GL"] = chosen
    if screenless():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else pygame prints an error, and draws all the same
    env = agent.prepare(agent.environments()(render_mode="rgb_array"))
    adapter = Adapter(env)
    policy, _ = agent.policy_function()
    to_environment = spaces.to_environment(agent.action_space)
    frames, returns = [], []
    try:
        for episode in range(episodes):
            first = episode_seed(agent.config.seed if seed is None else seed, VIDEO, 0, episode)
            observation, mask = adapter.reset(first)
            total, done = 0.0, False
            while not done and len(frames) < most_frames:
                frames.append(_frame(env))
                allowed = () if mask is None else (mask[None],)
                (action,) = to_environment(np.asarray(policy(observation[None], *allowed)))
                observation, reward, terminated, truncated, mask = adapter.step(action)
                total += reward
                done = terminated or truncated
            returns.append(total)
    finally:
        adapter.close()
    rate = env.metadata.get("render_fps") or 30
    write_atomically(path, writer(frames, rate))  # so that no link in somebody's run folder is followed
    return float(np.mean(returns))


def renderer() -> str | None:
    """What MUJOCO_GL has to be for pictures of MuJoCo's tasks: set for Linux without a screen, else as it is.

    There MuJoCo would choose a library that needs a screen, and fail.
    """
    if "MUJOCO_GL" in os.environ or not screenless():
        return os.environ.get("MUJOCO_GL")
    libraries = {"egl": "EGL", "osmesa": "OSMesa"}
    return next((name for name, library in libraries.items() if ctypes.util.find_library(library)), None)


def hindrance(task: str) -> str | None:
    """Why no film of this task can be made here, as far as that is known without trying; None if nothing is known."""
    entry = gym.registry.get(task)
    place = "" if entry is None else str(entry.entry_point)
    drawn = any(f".{family}" in place for family in ("classic_control", "toy_text", "box2d"))
    if drawn and importlib.util.find_spec("pygame") is None:
        return "pip install 'implicitq[video]'"
    if ".mujoco" in place and screenless() and renderer() is None:
        return "install EGL (Debian, Ubuntu: apt install libegl1)"
    return None


def _frame(env: gym.Env) -> Array:
    with failures_named("render"):
        try:
            rendered = env.render()
        except gym.error.DependencyNotInstalled as error:
            raise InputError(
                f"rendering needs a package that is missing ({error}); pip install 'implicitq[video]'"
            ) from None
    if not isinstance(rendered, np.ndarray):
        raise InputError("the environment renders no pictures: its render_mode rgb_array gave none")
    return rendered


def _gif(frames: list[Array], rate: float) -> bytes:
    from PIL import Image

    # Viewers show at most 50 frames a second: of faster tasks, keep as many as keep the pace.
    stride = max(1, round(rate / 50))
    pictures = [Image.fromarray(frame) for frame in frames[::stride]]
    film = io.BytesIO()
    shown = {"append_images": pictures[1:], "duration": round(1000 * stride / rate), "loop": 0, "optimize": True}
    pictures[0].save(film, "GIF", save_all=True, **shown)
    return film.getvalue()


def _mp4(frames: list[Array], rate: float) -> bytes:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():  # the encoder wants a path
        film = Path(folder) / "film.mp4"
        warnings.filterwarnings("ignore", r"os\.fork", RuntimeWarning)  # of JAX; the child does nothing but run ffmpeg
        _imageio().mimwrite(film, frames, fps=rate, macro_block_size=2)
        return film.read_bytes()


def _imageio() -> Any:
    try:
        import imageio.v2 as imageio
        import imageio_ffmpeg  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(
            ".mp4 files need a package that is missing; pip install 'implicitq[video]', or write a .gif"
        ) from None
    return imageio
