"""The same sweep as tasks of a Ray cluster. Run folders lie on a path that all its machines share. docs/cluster.md."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from implicitq.machine import python
from implicitq.runs.files import lock
from implicitq.runs.layout import has_run, progress_of
from implicitq.sweeps import sweep
from implicitq.sweeps.display import Live
from implicitq.sweeps.pool import pinned, start_worker, stop_on_signals
from implicitq.sweeps.studies import PlannedRun
from implicitq.sweeps.sweep import ATTEMPTS, Failure, Outcome
from implicitq.types import InputError

_ANSWER_SECONDS = 25
_LOST_NODES = 20  # how often a run may lose its machine, as on cheap cloud machines that are taken away
_BUSY_SECONDS = 60  # how long a run that lost its machine may still be locked by it
_STOP_SECONDS = 120  # for the checkpoints of all workers
_POLL_SECONDS = 0.5


def connect(address: str) -> None:
    """Join the cluster at `address`; one sentence if it does not answer."""
    try:
        importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise InputError("--on ray needs the package ray; install it with: pip install 'implicitq[cluster]'") from None
    _check_answers(address)
    import ray  # pyright: ignore[reportMissingImports]

    if ray.is_initialized():
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise InputError(_no_answer(address, _first_line(error))) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _check_answers(address: str) -> None:
    """Ray itself would wait for minutes: see first, in a process of its own, whether it gets anywhere at all."""
    if address != "auto":
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if not host or not port.isdecimal():
            raise InputError(f"address must be auto, HOST:PORT or ray://HOST:PORT, got {address!r}")
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, OverflowError) as error:
            raise InputError(_no_answer(address, str(error))) from None
    code = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='CRITICAL')"
    try:
        tried = subprocess.run(
            python("-c", code, address), capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(_no_answer(address, f"nothing within {_ANSWER_SECONDS} seconds")) from None
    if tried.returncode:
        lines = [line for line in tried.stderr.splitlines() if line.strip()]
        raise InputError(_no_answer(address, lines[-1] if lines else "it ended at once"))


def _no_answer(address: str, why: str) -> str:
    return f"no Ray cluster answers at {address} ({why}); start one with: ray start --head"


def run_cluster(
    out: Path, runs: list[PlannedRun], live: Live, cpus_per_run: int = 1, memory: float | None = None
) -> Outcome:
    """Make all runs as Ray tasks, each with processors and `memory` GB of its own.

    If a machine is lost, its runs start again elsewhere.
    """
    import ray  # pyright: ignore[reportMissingImports]

    if cpus_per_run < 1:
        raise InputError(f"cpus_per_run must be a whole number of at least 1, got {cpus_per_run}")
    if memory is not None and not memory > 0:
        raise InputError(f"memory_per_run must be a positive number, got {memory}")
    shared = out.resolve()
    room = {} if memory is None else {"memory": int(memory * 1e9)}
    options = {**room, "num_cpus": cpus_per_run, "max_retries": _LOST_NODES, "retry_exceptions": False}
    remote = ray.remote(**options)(work)
    tasks: dict[Any, PlannedRun] = {remote.remote(str(shared), run, cpus_per_run): run for run in runs}
    failures: list[Failure] = []
    try:
        with stop_on_signals():
            _follow(shared, tasks, failures, live)
    except KeyboardInterrupt:
        live.stopping(len(tasks))
        for task in tasks:
            ray.cancel(task)  # interrupts `work`
        ray.wait(list(tasks), num_returns=len(tasks), timeout=_STOP_SECONDS)
        return Outcome(len(runs) - len(tasks) - len(failures), tuple(failures), interrupted=True)
    return Outcome(len(runs) - len(failures), tuple(failures), interrupted=False)


def _follow(shared: Path, tasks: dict[Any, PlannedRun], failures: list[Failure], live: Live) -> None:
    """Wait for all tasks; takes those that are done out of `tasks`."""
    import ray  # pyright: ignore[reportMissingImports]

    while tasks:
        done, _ = ray.wait(list(tasks), timeout=_POLL_SECONDS)
        for task in done:
            run, reason = tasks[task], _result(task)
            del tasks[task]
            if reason is None and sweep.is_finished(shared, run):
                live.finished(run, progress_of(shared / run.folder))
                continue
            reason = reason or (
                f"it ended well, but {shared / run.folder} does not show that here; --out must be on a path that all "
                "machines share, and all must have the same version of implicitq"
            )
            failures.append(Failure(run, reason))
            live.failed(run, reason, again=False)
        begun = [run for run in tasks.values() if has_run(shared / run.folder)]
        waiting = [run for run in tasks.values() if run not in begun]
        live.refresh(shared, begun, waiting, max(1, len(begun)))


def _result(task: Any) -> str | None:
    """Why a task failed; None if it did not."""
    import ray  # pyright: ignore[reportMissingImports]

    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        return _first_line(error)


def work(out: str, run: PlannedRun, cpus: int) -> str | None:
    """On a machine of the cluster: go on with the run, a few times if it crashes; gives why it failed, if it did."""
    directory, reason, attempt = Path(out), "", 0
    patience = time.monotonic() + _BUSY_SECONDS
    with reserved_cores(cpus) as mine:
        while attempt < ATTEMPTS:
            if sweep.is_finished(directory, run):
                return None
            with pinned(mine):
                # Machines of a cluster may have different processors; a run that moves goes on all the same.
                worker = start_worker(directory, run, inexact=True)
            code = _wait(worker)
            if sweep.is_finished(directory, run):
                return None
            reason = sweep.reason_of(sweep.log_path(directory, run), code)
            if "another process is training" in reason and time.monotonic() < patience:
                time.sleep(1.0)  # where this run was before; its worker stops soon after its task
                continue
            attempt += 1
    return reason


def _wait(worker: subprocess.Popen[bytes]) -> int:
    """The exit code; when the task is cancelled, the worker gets the time to save a checkpoint."""
    try:
        while True:  # Ray's interrupt is noticed between two waits only
            with contextlib.suppress(subprocess.TimeoutExpired):
                return worker.wait(_POLL_SECONDS)
    except KeyboardInterrupt:
        worker.terminate()
        worker.wait(_STOP_SECONDS)
        raise


@contextlib.contextmanager
def reserved_cores(count: int) -> Iterator[set[int]]:
    """Cores of this machine that no other run has, held by locks that go with the process; none if too few are free.

    Ray counts processors but does not say which: without this, every run would spread over all of them.
    """
    if not hasattr(os, "sched_getaffinity"):
        yield set()
        return
    held: dict[int, int] = {}
    try:
        for core in sorted(os.sched_getaffinity(0)):
            if len(held) == count:
                break
            path = Path(tempfile.gettempdir()) / f"implicitq-{os.getuid()}-core-{core}.lock"
            try:
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except OSError:  # a link, or the file of somebody else: everybody may write there
                continue
            if lock(handle, wait=False):
                held[core] = handle
            else:
                os.close(handle)
        yield set(held) if len(held) == count else set()
    finally:
        for handle in held.values():
            os.close(handle)
