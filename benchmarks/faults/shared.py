"""What all faults share: the command line in a process of its own, run folders, outcomes and the table of results."""

from __future__ import annotations

import csv
import ctypes
import fcntl
import importlib.metadata
import multiprocessing.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.csv"
COLUMNS = ("part", "fault", "outcome", "count", "command", "seeds", "versions", "machine")
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
_CACHE = "JAX_COMPILATION_CACHE_DIR"
_COMPILED = Path(os.environ.get(_CACHE) or Path(tempfile.gettempdir()) / f"implicitq-faults-{os.getuid()}")
SETTINGS = {
    "COLUMNS": "400",
    _CACHE: str(_COMPILED),  # the same tiny functions all the time
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
"""What every command finds in its environment."""
_LIBC = ctypes.CDLL(None)
_DROP, _BEYOND_RIGHTS = 24, (1, 2, 3)  # PR_CAPBSET_DROP; CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
_CAPABILITY_VERSION = 0x20080522


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
    """Outcomes of one part of the campaign; what was not expected is printed with its seed at once."""

    part: str
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # (fault, outcome)
    seeds: list[int] = field(default_factory=list)  # the first and the last

    def add(
        self, seed: int, fault: str, outcome: str, about: str = "", ended: Ended | None = None, count: int = 1
    ) -> None:
        self.counts[fault, outcome] += count
        self.seeds = [min([seed, *self.seeds]), max([seed, *self.seeds])]
        if outcome not in EXPECTED:
            said = "" if ended is None else "\n".join((ended.out + ended.err).strip().splitlines()[-12:])
            where = f"{self.part}, {fault}: {outcome}: {about}"
            print(f"UNEXPECTED {where}; repeat it with --seed {seed} --count 1\n{said}", flush=True)

    def include(self, other: Tally) -> None:
        self.counts += other.counts
        self.seeds = [min(found), max(found)] if (found := [*self.seeds, *other.seeds]) else []

    @property
    def injected(self) -> int:
        return sum(self.counts.values())

    @property
    def good(self) -> bool:
        return all(outcome in EXPECTED for _, outcome in self.counts)

    def __str__(self) -> str:
        outcomes: Counter[str] = Counter()
        for (_, outcome), count in self.counts.items():
            outcomes[outcome] += count
        return f"{self.part}: {self.injected} injected, " + ", ".join(f"{n} {o}" for o, n in sorted(outcomes.items()))

    @property
    def command(self) -> str:
        return f"python benchmarks/faults/run.py {self.part} --seed {self.seeds[0]} --count {self.injected}"

    def read(self, path: Path) -> None:
        """Go on from what is there."""
        for row in _rows(path):
            if row["part"] == self.part:
                self.counts[row["fault"], row["outcome"]] += int(row["count"])
                self.seeds = [int(seed) for seed in row["seeds"].split("-")]

    def write(self, path: Path) -> None:
        """Put the rows of this part in the place of those that are there, one for every fault and outcome."""
        with open(path.with_suffix(".lock"), "w") as lock:  # several parts may run at once
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._write(path)

    def _write(self, path: Path) -> None:
        rows = [row for row in _rows(path) if row["part"] != self.part]
        seeds = "-".join(map(str, dict.fromkeys(self.seeds)))
        for (fault, outcome), count in sorted(self.counts.items()):
            cells = (self.part, fault, outcome, str(count), self.command, seeds, versions(), machine())
            rows.append(dict(zip(COLUMNS, cells, strict=True)))
        with open(path.with_suffix(".part"), "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        os.replace(path.with_suffix(".part"), path)


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def versions() -> str:
    packages = ("implicitq", "jax", "numpy", "safetensors", "gymnasium")
    return " ".join(
        [f"python {platform.python_version()}", *(f"{p} {importlib.metadata.version(p)}" for p in packages)]
    )


def machine() -> str:
    """Processor, cores and system."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "processor")
    return f"{model}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, {platform.system()}"


forking = False
"""Whether commands begin where Python has already imported everything; `processes.Forked` says how."""


def start(
    *words: object,
    ordinary: bool = False,
    environment: Mapping[str, str] | None = None,
    module: str = "implicitq.commands.main",
    **more: object,
) -> subprocess.Popen[str]:
    """The real command line, with our simulators on its path; `environment` may add to the variables it sees.

    `ordinary`: rights of files bind it, also if we are root, whom they do not bind.
    """
    _COMPILED.mkdir(exist_ok=True)
    ours = {**SETTINGS, **(environment or {})}
    path = [ours.get("PYTHONPATH"), str(HERE), os.environ.get("PYTHONPATH")]
    ours["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    if forking:
        from processes import Forked

        return cast("subprocess.Popen[str]", Forked([str(word) for word in words], ours, ordinary))
    options: dict = {"stdin": subprocess.DEVNULL, **more}
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=bind_by_rights if ordinary else None,
        env={**os.environ, **ours},
        **options,
    )


def bind_by_rights() -> None:
    """From now on, and in all that this process starts, root has to keep to the rights of files like others."""
    if os.geteuid() != 0:
        return
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _LIBC.capget(header, sets)
    for capability in _BEYOND_RIGHTS:
        _LIBC.prctl(_DROP, capability, 0, 0, 0)  # of what a new program may have
        for kind in range(3):
            sets[kind] &= ~(1 << capability)
    if _LIBC.capset(header, sets):
        raise OSError("the rights beyond those of files cannot be given up")


def end(process: subprocess.Popen[str], seconds: float = 300) -> Ended:
    try:
        out, err = process.communicate(timeout=seconds)
        return Ended(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        process.kill()
        return Ended(None, *process.communicate())


def run(*words: object, seconds: float = 300, **options: object) -> Ended:
    return end(start(*words, **options), seconds)  # pyright: ignore[reportArgumentType]


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


def differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="implicitq-faults-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def lasting_scratch() -> Path:
    """A folder that stays until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="implicitq-faults-"))
    multiprocessing.util.Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=0)
    return folder
