"""One run of a sweep in a process of its own: a command of implicitq that does not outlive who started it.

python -m implicitq.sweeps.worker PARENT_PID train miq --env Pendulum-v1 ...
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

_POLL_SECONDS = 0.5


def main() -> None:
    parent, *arguments = sys.argv[1:]
    threading.Thread(target=_follow, args=(int(parent),), daemon=True).start()

    from implicitq.commands import main as cli

    sys.exit(cli.run(arguments))


def _follow(parent: int) -> None:
    """Ask for an orderly stop, with a checkpoint, once the parent is gone: it may have been killed."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
