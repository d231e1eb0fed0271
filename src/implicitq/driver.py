"""Drives a trainer: passes its events on, and stops it at a step boundary when asked to."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from implicitq.train import Event, Ticked, Trainer


class Listener(Protocol):
    def show(self, event: Event) -> None: ...


class Recorder(Protocol):
    """What keeps a run: its folder."""

    def record(self, event: Event, trainer: Trainer) -> None: ...

    def checkpoint(self, trainer: Trainer) -> None: ...


class Interrupted(KeyboardInterrupt):
    """Stopped by a signal, after the current step was finished and saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"interrupted at step {step}")
        self.signal_number = signal_number
        self.step = step


def drive(trainer: Trainer, until: int, run: Recorder | None, listener: Listener) -> None:
    """Train up to the step `until`. A first Ctrl-C (or SIGTERM) saves a checkpoint and raises `Interrupted`."""
    with _signals_noted() as noted:
        for event in trainer.run(until):
            if run is not None:
                run.record(event, trainer)
            listener.show(event)
            if noted and isinstance(event, Ticked):
                if run is not None:
                    run.checkpoint(trainer)
                raise Interrupted(noted[0], trainer.step)


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of acting on them; the second one acts as usual."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.getsignal(number) for number in signals}

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        for each in signals:
            signal.signal(each, previous[each])

    for number in signals:
        signal.signal(number, note)
    try:
        yield noted
    finally:
        for number in signals:
            signal.signal(number, previous[number])
