"""Strict numerics for all tests, and settings that keep them small."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import jax
import pytest

import made_once
from toys import SMALL

pytest_plugins = ["run_fixtures"]

jax.config.update("jax_numpy_rank_promotion", "raise")
hypothesis.settings.register_profile("implicitq", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("implicitq")

# Many tests compile the same tiny functions. The first process of a session makes a folder to keep them in; the workers
# of pytest-xdist, and the commands that tests start, inherit its name.
_COMPILED = "JAX_COMPILATION_CACHE_DIR"
_is_first = _COMPILED not in os.environ
if _is_first:
    os.environ[_COMPILED] = tempfile.mkdtemp(prefix="implicitq-tests-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# Most of the time would go into making fast code of functions that run for milliseconds, and into tracing the same
# functions again for every agent. With flags of your own (`.ci/run` runs some tests a second time so) everything is
# traced and compiled as users have it.
_HASTE = "IMPLICITQ_TESTS_HASTE"  # tells the workers of pytest-xdist that the flags they inherit are not yours
if "XLA_FLAGS" not in os.environ:
    os.environ |= {"XLA_FLAGS": "--xla_backend_optimization_level=0", _HASTE: "1"}
if _HASTE in os.environ:
    made_once.share()
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # a thread for it costs more than so small functions do
os.environ["IMPLICITQ_CACHE"] = "off"  # so that no test finds or leaves anything in the folder of a user
jax.config.update("jax_compilation_cache_dir", os.environ[_COMPILED])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_unconfigure() -> None:
    if _is_first:
        shutil.rmtree(os.environ.pop(_COMPILED), ignore_errors=True)


@pytest.fixture
def small() -> dict[str, Any]:
    """Hyperparameters of a run that takes about a second."""
    return dict(SMALL)


@pytest.fixture
def small_flags() -> list[str]:
    """The same for the command line."""
    flags: list[str] = []
    for name, value in SMALL.items():
        values = value if isinstance(value, tuple) else (value,)
        flags += [f"--{name.replace('_', '-')}", *map(str, values)]
    return flags


@pytest.fixture
def files_of() -> Callable[[Path], dict[str, bytes]]:
    """Content of all files of a run folder that must not depend on clocks or interruptions."""

    def read(directory: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(directory)): path.read_bytes()
            for path in sorted(directory.rglob("*"))
            if path.is_file() and path.name not in ("timing.csv", ".lock")
        }

    return read
