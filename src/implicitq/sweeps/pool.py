"""The local pool: one process per core, each pinned to its core."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from implicitq.runs.layout import progress_of
from implicitq.sweeps import sweep
from implicitq.sweeps.display import Live
from implicitq.sweeps.studies import PlannedRun
from implicitq.sweeps.sweep import ATTEMPTS, Failure, Outcome
from implicitq.types import InputError

_POLL_SECONDS = 0.2
_STOP_SECONDS = 120  # for the checkpoints of all workers


@dataclass
class _Worker:
    run: PlannedRun
    process: subprocess.Popen[bytes]
    core: int | None
    attempt: int


def cores(workers: int | None) -> list[int | None]:
    """The cores to pin workers to: those this process may use, `workers` of them."""
    if workers is not None and workers < 1:
        raise InputError(f"workers must be a whole number of at least 1, got {workers}")
    if hasattr(os, "sched_getaffinity"):
        usable: list[int | None] = [*sorted(os.sched_getaffinity(0))]
    else:  # no pinning on this system
        usable = [None] * (os.cpu_count() or 1)
    if workers is None:
        return usable
    return [usable[number % len(usable)] for number in range(workers)]


def run_pool(out: Path, runs: list[PlannedRun], on: list[int | None], live: Live, inexact: bool = False) -> Outcome:
    """Make all runs; Ctrl-C or SIGTERM stops the workers with a checkpoint each."""
    waiting = deque((run, 1) for run in runs)
    free = list(on)
    active: list[_Worker] = []
    failures: list[Failure] = []
    finished = 0
    with stop_on_signals():
        try:
            while waiting or active:
                while waiting and free:
                    run, attempt = waiting.popleft()
                    active.append(_start(out, run, free.pop(0), attempt, inexact))
                    live.started(run, attempt)
                for worker in [w for w in active if w.process.poll() is not None]:
                    active.remove(worker)
                    free.append(worker.core)
                    if sweep.is_finished(out, worker.run):
                        finished += 1
                        live.finished(worker.run, progress_of(out / worker.run.folder))
                        continue
                    reason = sweep.reason_of(sweep.log_path(out, worker.run), worker.process.returncode)
                    if worker.attempt < ATTEMPTS:
                        waiting.appendleft((worker.run, worker.attempt + 1))
                    else:
                        failures.append(Failure(worker.run, reason))
                    live.failed(worker.run, reason, again=worker.attempt < ATTEMPTS)
                live.refresh(out, [w.run for w in active], [run for run, _ in waiting], len(on))
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            live.stopping(len(active))
            _stop(active)
            return Outcome(finished, tuple(failures), interrupted=True)
        except BaseException:
            _stop(active)
            raise
    return Outcome(finished, tuple(failures), interrupted=False)


def start_worker(out: Path, run: PlannedRun, inexact: bool) -> subprocess.Popen[bytes]:
    """A worker on the run, away from this terminal's Ctrl-C; its output goes to a log."""
    command = sweep.worker_command(out, run, inexact)
    path = sweep.log_path(out, run)
    path.unlink(missing_ok=True)  # whatever was there, also a pipe; a new file is nobody else's
    with open(path, "xb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def _start(out: Path, run: PlannedRun, core: int | None, attempt: int, inexact: bool) -> _Worker:
    with pinned(None if core is None else {core}):  # the worker inherits it
        return _Worker(run, start_worker(out, run, inexact), core, attempt)


def _stop(active: list[_Worker]) -> None:
    for worker in active:
        worker.process.send_signal(signal.SIGTERM)
    end = time.monotonic() + _STOP_SECONDS
    try:
        for worker in active:
            worker.process.wait(max(0.0, end - time.monotonic()))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):  # asked twice, or hanging: the last checkpoint counts
        for worker in active:
            worker.process.kill()


@contextmanager
def pinned(to: set[int] | None) -> Iterator[None]:
    """Confine this thread, and what it starts meanwhile, to some cores."""
    if not to:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, to)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM alike, also where a shell has told background processes to ignore the former."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        for number in signals:
            signal.signal(number, previous[number])
