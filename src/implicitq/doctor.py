"""What this machine and this install can do, and what to do about what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from implicitq.compilation import VARIABLE
from implicitq.machine import available, python, versions

_LITTLE_DISK = 5e9  # bytes: a replay of a million rows, its copy in the run folder, and room to move
_LITTLE_MEMORY = 1e9
_FOR_OTHERS = ("test", "dev", "docs", "peers")  # extras of those who work on implicitq itself
_RENDER = "import gymnasium, sys; env = gymnasium.make(sys.argv[1], render_mode='rgb_array'); env.reset(); env.render()"
_SETS = ("avx", "avx2", "fma", "avx512f", "amx_bf16", "asimd", "sve")  # that XLA makes use of

State = Literal["good", "missing", "broken"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: State  # missing: something is not there that some commands need; broken: training is not possible
    told: str
    remedy: str | None = None  # what to do about it


def examine() -> list[Finding]:
    """Everything, in the order in which it is worth reading. Takes a while: it trains, and it renders."""
    looks: list[Callable[[], Iterator[Finding]]] = [_packages, _machine, _cache, _room, _training, _rendering, _extras]
    return [finding for look in looks for finding in look()]


def _packages() -> Iterator[Finding]:
    found = versions()
    names = ("python", "implicitq", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "mujoco")
    yield Finding("versions", "good", ", ".join(f"{name} {found[name] or 'missing'}" for name in names))
    unfit = list(missing_of("implicitq", ""))
    if unfit:
        yield Finding("packages", "broken", f"not as needed: {', '.join(unfit)}", "pip install implicitq")


def _machine() -> Iterator[Finding]:
    import jax

    found = versions()
    try:
        devices = ", ".join(f"{device.platform} {device.device_kind}" for device in jax.devices())
        yield Finding("devices", "good", f"{devices}; networks run on the first")
    except (RuntimeError, AssertionError) as error:  # the second, without a word, where it has a platform but no device
        chosen = os.environ.get("JAX_PLATFORMS", "")
        told = f"JAX finds none with JAX_PLATFORMS={chosen!r}: {str(error) or type(error).__name__}"
        yield Finding("devices", "broken", told, "unset JAX_PLATFORMS, or set it to cpu")
    cores, usable = os.cpu_count(), found["threads"]
    told = f"{usable} of {cores} can be used here; a run uses all it may, `taskset -c 0 implicitq train` gives it one"
    yield Finding("cores", "good", told)
    yield Finding("processor", "good", f"{found['processor']}, {found['system']}; {_instruction_sets()}")


def _instruction_sets() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        line = next(line for line in lines if line.lower().startswith(("flags", "features")))
    except (OSError, StopIteration):
        return "instruction sets unknown"
    have = line.split(":", 1)[1].split()
    return " ".join(name for name in _SETS if name in have) or "no vector instructions that XLA uses"


def _cache() -> Iterator[Finding]:
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if folder:
        yield Finding("compile cache", "good", f"in {_short(folder)}")
    else:
        remedy = f"unset {VARIABLE}, or set it to a folder that only you can write to"
        yield Finding("compile cache", "missing", "none: every start compiles anew", remedy)


def _room() -> Iterator[Finding]:
    found = available()
    if found is None:
        yield Finding("memory", "good", "the system does not tell")
    else:
        little = found.free < _LITTLE_MEMORY
        remedy = "use a smaller --replay-size, or end other programs" if little else None
        told = f"{_gigabytes(found.free)} free of {_gigabytes(found.limit)}"
        yield Finding("memory", "missing" if little else "good", told, remedy)
    free = shutil.disk_usage(Path.cwd()).free
    little = free < _LITTLE_DISK
    remedy = "make room, or write runs to another disk with --out" if little else None
    yield Finding("disk", "missing" if little else "good", f"{_gigabytes(free)} free in this folder", remedy)


def _training() -> Iterator[Finding]:
    """A training of a few steps, with evaluations and a run folder."""
    from implicitq.agent import load, make

    tiny = {"hidden": (8,), "min_replay": 50, "batch_size": 8, "eval_every": 100, "eval_episodes": 1, "steps": 100}
    try:
        with tempfile.TemporaryDirectory() as folder:
            with make("miq", "Pendulum-v1", **tiny) as agent:
                agent.learn(out=Path(folder) / "run")
            load(Path(folder) / "run")
    except Exception as error:  # whatever it is, this is the command that has to tell
        told = f"does not work: {type(error).__name__}: {error}"
        yield Finding(
            "training", "broken", told, "install the versions that were tested: pip install -c constraints.txt ."
        )
        return
    yield Finding("training", "good", "works: a run of 100 steps was made, saved and loaded")


def _rendering() -> Iterator[Finding]:
    """Films of the two kinds of tasks that Gymnasium itself brings, each tried in a process of its own."""
    from implicitq.video import renderer

    tries: dict[str, tuple[str, dict[str, str | None]]] = {
        "rendering, MuJoCo": ("InvertedPendulum-v5", {"MUJOCO_GL": renderer()}),
        "rendering, 2D": ("CartPole-v1", {}),
    }
    for name, (task, setting) in tries.items():
        environment = {**os.environ, **{key: value for key, value in setting.items() if value is not None}}
        command = python("-c", _RENDER, task)
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
            reason = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it crashed"])[-1]
        except subprocess.TimeoutExpired:
            reason = "it takes longer than two minutes"
        if not reason:
            chosen = f", with MUJOCO_GL={setting['MUJOCO_GL']}" if setting.get("MUJOCO_GL") else ""
            yield Finding(name, "good", f"works{chosen}")
            continue
        remedy = (
            "install EGL or OSMesa (Debian, Ubuntu: apt install libegl1 libosmesa6), then try MUJOCO_GL=egl or osmesa"
            if "MuJoCo" in name
            else "pip install 'implicitq[video]'"
        )
        yield Finding(name, "missing", f"no films of such tasks: {reason[:200]}", remedy)


def _extras() -> Iterator[Finding]:
    declared = importlib.metadata.metadata("implicitq").get_all("Provides-Extra") or []
    for extra in declared:
        if extra in _FOR_OTHERS:
            continue
        lacking = list(missing_of("implicitq", extra))
        if lacking:
            remedy = f"pip install 'implicitq[{extra}]'"
            yield Finding(f"extra {extra}", "missing", f"not there: {', '.join(lacking)}", remedy)
        else:
            yield Finding(f"extra {extra}", "good", "installed")


def missing_of(package: str, extra: str, seen: frozenset[tuple[str, str]] = frozenset()) -> Iterator[str]:
    """What an extra of a package requires and this install lacks, or has in a version that does not fit.

    With "" for the extra: what the package itself requires.
    """
    for line in importlib.metadata.requires(package) or []:
        need = Requirement(line)
        mine = need.marker is None or need.marker.evaluate({"extra": extra})
        always = need.marker is None or need.marker.evaluate({"extra": ""})
        if not mine or (extra and always):
            continue
        try:
            version = importlib.metadata.version(need.name)
        except importlib.metadata.PackageNotFoundError:
            yield need.name
            continue
        if not need.specifier.contains(version, prereleases=True):
            yield f"{need.name}{need.specifier} (there is {version})"
        for inner in need.extras:
            key = (canonicalize_name(need.name), inner)
            if key not in seen:
                yield from missing_of(need.name, inner, seen | {key})


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB"


def _short(folder: str) -> str:
    """The path with ~ for the home folder, whose name is private."""
    home = str(Path.home())
    return folder.replace(home, "~", 1) if folder.startswith(home) else folder
