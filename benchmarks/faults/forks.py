"""Processes of the command line that begin where Python has imported everything: that saves half of their time.

Nothing else of them is shared: JAX starts in each of them, and this process has a single thread.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping

from shared import bind_by_rights

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
