"""Strict numerics for all tests, and what keeps them short: small settings, and nothing compiled or drawn twice."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import jax
import pytest

from implicitq import learner
from implicitq.runs import curve, policy_file
from toys import SMALL

pytest_plugins = ["run_fixtures"]

OF_THE_LOOP = {  # no compiled function looks at these; what it has to know of the task is in the spec
    *("env", "steps", "seed", "preset", "discount", "warmup", "min_replay", "replay_size", "updates_per_step"),
    *("action_bound", "num_envs", "vectorization", "on_env_error", "env_timeout"),
    *("eval_every", "eval_episodes", "checkpoint_every", "log_every"),
}
_KEPT = 150  # functions; each holds some megabytes of compiled code
_FOR_IMAGES = {"xla_backend_optimization_level": "1"}  # convolutions that are not optimized at all run for seconds


class _Settings(NamedTuple):
    """All that the compiled functions of an agent depend on."""

    maker: Hashable
    algorithm: type
    values: tuple[tuple[str, Hashable], ...]
    spec: Any
    device: Hashable


_settings: contextvars.ContextVar[_Settings | None] = contextvars.ContextVar("settings", default=None)


def share() -> None:
    """What is the same for every agent with the same settings is made once in a process of the tests.

    An agent traces and lowers a dozen functions when it begins, and draws its curve when it ends; most tests make
    agents that differ in nothing of this. Bits are as without: a function is shared only where the config, the spaces
    and the device are equal, between agents that train or between those from files, and a picture only where all its
    numbers are.
    """
    _share_functions()
    _share_curves()


def _share_functions() -> None:
    made: dict[Hashable, Callable[..., Any]] = {}
    names: dict[Hashable, list[str]] = {}
    begin, load = learner.Learner.__init__, policy_file.load_actor
    compiled, tell = learner._jit, learner._metric_names

    @contextlib.contextmanager
    def known(maker: Any, algorithm: Any, spec: Any, config: Any, device: Any) -> Iterator[None]:
        ours = type(algorithm).__module__.startswith("implicitq.algorithms.")  # a test may bring one of its own
        values = {k: v for k, v in vars(config).items() if k not in OF_THE_LOOP}
        token = _settings.set(_Settings(maker, type(algorithm), tuple(values.items()), spec, device) if ours else None)
        try:
            yield
        finally:
            _settings.reset(token)

    def init(self: Any, algorithm: Any, spec: Any, config: Any, device: Any = None) -> None:
        with known(begin, algorithm, spec, config, device):
            begin(self, algorithm, spec, config, device)

    def load_actor(algorithm: Any, spec: Any, config: Any, found: Any, read: Any, device: Any = None) -> Any:
        with known(load, algorithm, spec, config, device):
            return load(algorithm, spec, config, found, read, device)

    def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        settings = _settings.get()
        if settings is None:
            return compiled(function, **options)
        inner = inspect.unwrap(function)
        key = (settings, inner.__code__, inner is function, tuple(options.items()))
        if settings.spec.image is not None:
            options["compiler_options"] = _FOR_IMAGES
        made[key] = made.pop(key, None) or compiled(function, **options)  # the newest last
        if len(made) > _KEPT:
            del made[next(iter(made))]
        return made[key]

    def metric_names(*update: Any) -> list[str]:
        settings = _settings.get()
        if settings is None:
            return tell(*update)
        if settings not in names:
            names[settings] = tell(*update)
        return names[settings]

    learner.Learner.__init__, policy_file.load_actor = init, load_actor  # type: ignore[method-assign]
    learner._jit, learner._metric_names = jit, metric_names


def _share_curves() -> None:
    made: dict[Hashable, bytes] = {}
    draw = curve.learning_curve

    def learning_curve(title: str, evaluations: Any, metrics: Any) -> bytes:
        columns = tuple((name, column.tobytes()) for name, column in metrics.items())
        key = (title, tuple(evaluations), columns)
        if key not in made:
            made[key] = draw(title, evaluations, metrics)
        return made[key]

    curve.learning_curve = learning_curve


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
_HASTY_FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",  # the older way to make code of a fusion takes a third of the time
    "--xla_cpu_parallel_codegen_split_count=1",  # in one piece: the other core has its own worker of pytest-xdist
)
if "XLA_FLAGS" not in os.environ:
    os.environ |= {"XLA_FLAGS": " ".join(_HASTY_FLAGS), _HASTE: "1"}
if _HASTE in os.environ:
    share()
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # a thread for it costs more than so small functions do
    os.fsync = lambda handle: None  # no test cuts the power, and waiting for the disk takes as long as a small run
os.environ["IMPLICITQ_CACHE"] = "off"  # so that no test finds or leaves anything in the folder of a user
jax.config.update("jax_compilation_cache_dir", os.environ[_COMPILED])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
# Tracing makes objects by the million, and by default a look for garbage follows every 700 of them.
gc.set_threshold(20_000, 10, 10)


def pytest_collection_finish() -> None:
    """All that is imported by now stays, so that no look for garbage goes through it again."""
    gc.freeze()


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
