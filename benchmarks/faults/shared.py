"""What all faults share: the command line in a process of its own, run folders, outcomes and the table of results."""

from __future__ import annotations

import csv
import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.csv"
COLUMNS = ("fault", "injected", "outcome", "count", "command", "versions")
EXPECTED = ("identical", "detected", "fallen back", "harmless")
APART = ("timing.csv", ".lock")  # clocks, and the lock: all that may differ between equal runs
SMALL = {
    "hidden": 8,
    "min-replay": 20,
    "batch-size": 8,
    "replay-size": 1_000,
    "eval-every": 40,
    "eval-episodes": 2,
    "checkpoint-every": 40,
    "log-every": 20,
}
ENV = "Pendulum-v1"
DISCRETE = "CartPole-v1"
_COMPILED = Path(tempfile.gettempdir()) / f"implicitq-faults-{os.getuid()}"  # the same tiny functions all the time


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int | None  # None: it had to be killed after its time
    out: str
    err: str

    @property
    def outcome(self) -> str:
        """As far as it can be told from the words: what was refused in a sentence is detected."""
        if self.code is None:
            return "HANG"
        if "Traceback (most recent call last)" in self.out + self.err:
            return "TRACEBACK"
        if self.code < 0:
            return f"KILLED BY SIGNAL {-self.code}"
        if self.code:
            return "detected" if "error: " in self.err or "failed: " in self.out else "NO SENTENCE"
        return "fallen back" if "warning: " in self.err else "done"


@dataclass
class Tally:
    """Outcomes of one fault; what was not expected is printed with its seed at once."""

    fault: str
    command: str
    started: float = field(default_factory=time.monotonic)
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: str, seed: int, about: str, ended: Ended | None = None) -> None:
        self.outcomes[outcome] += 1
        if outcome not in EXPECTED:
            said = "" if ended is None else "\n".join((ended.out + ended.err).strip().splitlines()[-12:])
            print(
                f"UNEXPECTED {self.fault}: {outcome}: {about}; repeat it with --seed {seed} --count 1\n{said}",
                flush=True,
            )

    def write(self) -> bool:
        """Print a row and append to the results; gives whether all was as expected."""
        total, counts = sum(self.outcomes.values()), dict(sorted(self.outcomes.items()))
        told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        print(f"{self.fault:<28}{total:>6}  {told}  ({time.monotonic() - self.started:.0f} s)", flush=True)
        fresh = not RESULTS.exists()
        with open(RESULTS, "a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if fresh:
                writer.writerow(COLUMNS)
            writer.writerows([self.fault, total, outcome, n, self.command, versions()] for outcome, n in counts.items())
        return all(outcome in EXPECTED for outcome in counts)


def versions() -> str:
    packages = ("implicitq", "jax", "numpy", "gymnasium")
    return " ".join(
        [f"python {platform.python_version()}", *(f"{p} {importlib.metadata.version(p)}" for p in packages)]
    )


def start(
    *words: object, limits: dict[int, int] | None = None, module: str = "implicitq.commands.main"
) -> subprocess.Popen[str]:
    """The real command line, with our simulators on its path."""
    _COMPILED.mkdir(exist_ok=True)
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    jax = {"JAX_COMPILATION_CACHE_DIR": str(_COMPILED), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}

    def confine() -> None:
        for kind, most in (limits or {}).items():
            resource.setrlimit(kind, (most, most))

    ours = {"PYTHONPATH": path, "COLUMNS": "400", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=confine if limits else None,
        env={**os.environ, **jax, **ours},
    )


def end(process: subprocess.Popen[str], seconds: float = 300) -> Ended:
    try:
        out, err = process.communicate(timeout=seconds)
        return Ended(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        process.kill()
        return Ended(None, *process.communicate())


def run(*words: object, seconds: float = 300, limits: dict[int, int] | None = None) -> Ended:
    return end(start(*words, limits=limits), seconds)


def train_words(algorithm: str, folder: Path, *more: object, env: str | None = None, steps: int = 160) -> list[str]:
    task = env or (DISCRETE if algorithm in ("dqn", "mdqn") else ENV)
    bins = {} if algorithm in ("sac", "dqn", "mdqn", "iq-gaussian", "miq-gaussian") else {"bins": 3}
    flags = [word for name, value in {**SMALL, **bins, "steps": steps}.items() for word in (f"--{name}", value)]
    return [str(word) for word in ("train", algorithm, "--env", task, *flags, "--out", folder, *more)]


def go_on(folder: Path, words: Sequence[str]) -> list[str]:
    """What a user would type next: resume, or the same command if the run died before it had a config."""
    return ["resume", str(folder)] if (folder / "config.json").is_file() else list(words)


def files_of(folder: Path, apart: Sequence[str] = ()) -> dict[str, bytes]:
    """Content of all files that must not depend on clocks or interruptions."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in APART and str(path.relative_to(folder)) not in apart
    }


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="implicitq-faults-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
