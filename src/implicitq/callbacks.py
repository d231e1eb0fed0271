"""Ready-made callbacks for `agent.learn(callback=...)`, and the pattern for your own.

A callback is a function of an event (`implicitq.events`) that returns False to stop the run at the end of the step,
after a checkpoint. Whatever else it returns is ignored. Agents of several seeds take them too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from implicitq.events import Evaluated, Event, Started, Ticked
from implicitq.types import InputError

Callback = Callable[[Event], bool | None]


def stop_at(return_: float) -> Callback:
    """Stop as soon as the mean return of an evaluation has reached `return_`."""

    def stop_at(event: Event) -> bool | None:
        return not (isinstance(event, Evaluated) and event.evaluation.mean >= return_)

    return stop_at


def every(n_steps: int, call: Callback) -> Callback:
    """Call `call` with the `Ticked` event of every `n_steps`-th environment step; it may return False to stop.

    With several environments the steps go up by more than one: then at the first step that has reached the multiple.
    With several seeds, for each of them.
    """
    if not isinstance(n_steps, int) or n_steps < 1:
        raise InputError(f"n_steps must be a whole number of at least 1, got {n_steps!r}")
    last: dict[int | None, int] = {}  # step of every seed

    def every(event: Event) -> bool | None:
        if isinstance(event, Started):
            last[event.seed] = event.step
        elif isinstance(event, Ticked):
            due = event.step // n_steps > last.get(event.seed, 0) // n_steps
            last[event.seed] = event.step
            return call(event) if due else None

    return every


def keep_best(path: str | Path) -> Callback:
    """Save the policy to `path` whenever an evaluation has a higher mean return than all before; `load` reads it.

    Counts the evaluations that it has heard itself, those of all seeds if there are several. A run folder keeps the
    best policy of the whole run without this.
    """
    agents: dict[int | None, Any] = {}  # by their seeds
    best = float("-inf")

    def keep_best(event: Event) -> None:
        nonlocal best
        if isinstance(event, Started):
            agents[event.seed] = event.agent
        elif isinstance(event, Evaluated) and event.evaluation.mean > best:
            agents[event.seed].save(path)
            best = event.evaluation.mean

    return keep_best
