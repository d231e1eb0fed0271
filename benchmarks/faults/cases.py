"""Many cases in one process, through the command line's own entry: starting Python and JAX for each takes longer.

`Cases` is the side of the campaign. The other side, `python cases.py MODULE FUNCTION ROOM`, reads a seed per line,
calls the function with the room and the seed, and answers with what it returns, as JSON. A case that takes too long is
broken off; a process that dies or hangs is named by its seed, and the next case gets a new one.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import resource
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared import Ended, end, start

_CASES_EACH = 40  # of one process: compiled functions pile up
_SECONDS = 180  # for one command, also on a busy machine
_ROOM = {resource.RLIMIT_AS: 24 << 30, resource.RLIMIT_FSIZE: 64 << 20}  # JAX reserves addresses that it never fills


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
        import traceback

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
            self._process = start(*self._words, module="cases", environment=self._path, stdin=subprocess.PIPE)
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
