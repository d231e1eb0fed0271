"""Commands without a fresh Python for each, which would take longer than they do.

`Cases`: many in one process, through the command line's own entry. The other side of it, `python processes.py MODULE
FUNCTION ROOM`, reads a seed per line, calls the function with the room and the seed, and answers with what it returns,
as JSON. A case that takes too long is broken off; a process that dies or hangs is named by its seed, and the next case
gets a new one.

`Forked`: each in a process of its own that begins where Python has imported everything, which saves half of its time.
Nothing else is shared: JAX starts in each of them, and the process that they leave has a single thread.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shared import Ended, bind_by_rights, end, start

_IMPORTED = (
    "implicitq.commands.main",
    "implicitq.commands.train",
    "implicitq.commands.resume",
    "implicitq.agent",
    "implicitq.runs.curve",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "simulators",
)
_CASES_EACH = 40  # of one process: compiled functions pile up
_SECONDS = 180  # for one command, also on a busy machine
_ROOM = {resource.RLIMIT_AS: 24 << 30, resource.RLIMIT_FSIZE: 64 << 20}  # JAX reserves addresses that it never fills


class Forked:
    """As much of `subprocess.Popen` as the campaign needs."""

    def __init__(self, words: list[str], environment: Mapping[str, str], ordinary: bool) -> None:
        for name in _IMPORTED:
            importlib.import_module(name)
        if len(os.listdir("/proc/self/task")) > 1:
            raise SystemExit("this process has several threads, so its copies may hang; run it on one core")
        self._said = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._live(words, environment, ordinary)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("implicitq", timeout)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float = 1e9) -> tuple[str, str]:
        self.wait(timeout)
        texts = []
        for file in self._said:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return texts[0], texts[1]

    def _live(self, words: list[str], environment: Mapping[str, str], ordinary: bool) -> None:
        """As the command line would; never returns."""
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, file in enumerate(self._said, 1):
                os.dup2(file.fileno(), number)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            if ordinary:
                bind_by_rights()
            os.environ.update(environment)
            main = sys.modules["implicitq.commands.main"]
            sys.modules["__main__"] = main  # which is what workers of environments import
            if "FAULT_BELOW" in environment:
                sys.path.insert(0, environment["PYTHONPATH"].split(os.pathsep)[0])
                sys.modules.pop("sitecustomize", None)
                importlib.import_module("sitecustomize")
            code = main.run(words)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


class TooLong(BaseException):
    """Nothing in between takes it for an error of the disk, as it would a TimeoutError."""


def command(*words: object, seconds: float = _SECONDS) -> Ended:
    """Run one command in this process."""
    from implicitq.commands import main

    out, err = io.StringIO(), io.StringIO()
    signal.signal(signal.SIGALRM, _too_long)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("default")
            signal.alarm(int(seconds))
            code: int | None = main.run([str(word) for word in words])
    except TooLong:
        code = None
    except BaseException:
        traceback.print_exc(file=err)
        code = 1
    finally:
        signal.alarm(0)
    return Ended(code, out.getvalue(), err.getvalue())


def _too_long(number: int, frame: object) -> None:
    raise TooLong


class Cases:
    """A process that answers for one seed after the other."""

    def __init__(self, function: Callable[[Path, int], dict[str, Any]], room: Path, path: str = "") -> None:
        """`path` comes first on the search path of the process."""
        self._words = [Path(function.__code__.co_filename).stem, function.__name__, room]
        self._path = {"PYTHONPATH": path} if path else {}
        self._process: subprocess.Popen[str] | None = None
        self._done = 0

    def run(self, seed: int) -> dict[str, Any]:
        """What the function returned; `outcome` is DIED or HANG if it returned nothing."""
        if self._process is None:
            self._process = start(*self._words, module="processes", environment=self._path, stdin=subprocess.PIPE)
            self._done = 0
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{seed}\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], 2 * _SECONDS)
        line = process.stdout.readline() if ready else ""
        self._done += 1
        if not line:
            self._process = None
            process.kill()
            ended = end(process)
            return {"outcome": "DIED" if ready else "HANG", "fault": "the process", "said": ended.err}
        if self._done >= _CASES_EACH:
            self._process = None
            process.stdin.close()
            process.stdin = None
            end(process)
        return json.loads(line)


def main() -> None:
    module, function, room = sys.argv[1:]
    for kind, most in _ROOM.items():
        resource.setrlimit(kind, (most, most))
    case = getattr(importlib.import_module(module), function)
    for line in sys.stdin:
        print(json.dumps(case(Path(room), int(line))), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
