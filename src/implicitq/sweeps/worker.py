"""One run of a sweep in a process of its own, which does not outlive the process that started it.

python -m implicitq.sweeps.worker PARENT_PID ORDER, where ORDER is the JSON of `sweep.worker_command`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from implicitq import configs
from implicitq.compilation import show_warning, use_cache
from implicitq.configs import Config
from implicitq.runs.layout import has_run
from implicitq.types import InputError
from implicitq.validation import sentence

if TYPE_CHECKING:
    from implicitq.agent import Agent

_POLL_SECONDS = 0.5


def main() -> None:
    parent, order = sys.argv[1:]
    threading.Thread(target=_follow, args=(int(parent),), daemon=True).start()
    warnings.showwarning = show_warning
    use_cache()
    try:
        code = work(**json.loads(order))
    except (InputError, OSError) as error:
        print(f"error: {sentence(error)}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(code)


def work(folder: str, config: dict[str, Any], inexact: bool) -> int:
    """Make the run, or go on with it, up to its planned end; gives the exit code."""
    from implicitq.driver import Interrupted

    agent = _agent(Path(folder), configs.from_json(config), inexact)
    try:
        agent.learn(progress=True, out=None if agent.directory is not None else folder)
    except Interrupted as stop:
        _say(f"stopped at step {stop.step:,}; a checkpoint is saved")
        return 128 + stop.signal_number
    finally:
        agent.close()
    _say(f"finished at step {agent.step:,}")
    return 0


def _agent(folder: Path, config: Config, inexact: bool) -> Agent:
    """The agent, untrained or at its newest checkpoint, with as many steps ahead as are planned now."""
    from implicitq.agent import from_config, resume
    from implicitq.seeds import extend_or_close

    if not has_run(folder):
        agent = from_config(config)
        _say(f"{config.algorithm} on {config.env}, seed {config.seed}, {config.steps:,} steps in {folder}")
        return agent
    agent = resume(folder, config.env, inexact=inexact)
    steps = max(agent.config.steps, config.steps)
    if not extend_or_close(agent, steps):
        raise InputError(f"{folder} is at its last step, {agent.step:,}, but its files do not show a finished run")
    _say(f"resuming {folder} at step {agent.step:,} of {steps:,}")
    return agent


def _follow(parent: int) -> None:
    """Ask for an orderly stop, with a checkpoint, once the parent is gone: it may have been killed."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _say(text: str) -> None:
    print(text, flush=True)  # the log is read while the run goes on


if __name__ == "__main__":
    main()
