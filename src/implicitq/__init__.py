"""Implicit Q-values: Q = temperature * ln pi + V, learnt with one squared loss.

agent = implicitq.make("miq", "HalfCheetah-v5", seed=0)
agent.learn(100_000, progress=True)
action, _ = agent.predict(observation, deterministic=True)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from implicitq import callbacks
    from implicitq.agent import Agent, load, make, resume
    from implicitq.types import Evaluation, InputError

__version__ = "0.1.0"
__all__ = ["Agent", "Evaluation", "InputError", "__version__", "callbacks", "load", "make", "resume"]


def __getattr__(name: str) -> Any:
    """Import on first use only: configs, help texts and reports do without JAX, and a version without anything."""
    if name in ("Agent", "load", "make", "resume"):
        return getattr(importlib.import_module("implicitq.agent"), name)
    if name in ("Evaluation", "InputError"):
        return getattr(importlib.import_module("implicitq.types"), name)
    if name == "callbacks":
        return importlib.import_module("implicitq.callbacks")
    raise AttributeError(f"module 'implicitq' has no attribute {name!r}")
