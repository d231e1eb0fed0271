"""Drives a trainer: passes its events to listeners, and stops it at the end of a step when asked to."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

from implicitq.events import AnyListener, CheckpointDue, Event, Started, Stopped, Ticked
from implicitq.train import Trainer
from implicitq.types import InputError


class Interrupted(KeyboardInterrupt):
    """Stopped by a signal, after the current step was finished and saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"interrupted at step {step}")
        self.signal_number = signal_number
        self.step = step


def drive(trainer: Trainer, until: int, listeners: Iterable[AnyListener] = (), agent: Any = None) -> None:
    """Train up to the step `until`; every event goes to every listener, in their order.

    The run stops early, at the end of a step and after a checkpoint, if a listener returns False; if one raises, which
    is then raised from here with its name; or on a first Ctrl-C or SIGTERM, which raises `Interrupted`.
    """
    audience = _Audience(listeners)
    with _signals_noted() as signals:
        try:
            audience.tell(Started(trainer.step, until, trainer.config, agent))
            for event in trainer.run(until):
                audience.tell(event)
                if isinstance(event, Ticked) and (signals or audience.stop) and event.step < until:
                    if audience.saved != event.step:
                        audience.tell(CheckpointDue(event.step))
                    break
            reached = trainer.step >= until
            audience.tell(Stopped(trainer.step, "finished" if reached else "interrupted" if signals else audience.why))
        except BaseException:
            audience.tell(Stopped(trainer.step, "failed"))
            raise
    if audience.failure is not None:
        raise audience.failure
    if signals and not reached:
        raise Interrupted(signals[0], trainer.step)


class _Audience:
    """All listeners of a run. One that raises hears no more; the others go on to the end of the step."""

    def __init__(self, listeners: Iterable[AnyListener]) -> None:
        self._listeners = list(listeners)
        self.stop = False
        self.failure: InputError | None = None
        self.saved: int | None = None  # step of the last checkpoint

    @property
    def why(self) -> Literal["asked", "failed"]:
        return "asked" if self.failure is None else "failed"

    def tell(self, event: Event) -> None:
        if isinstance(event, CheckpointDue):
            self.saved = event.step
        for listener in tuple(self._listeners):
            hear: Any = getattr(listener, "on_event", listener)
            try:
                self.stop |= hear(event) is False
            except Exception as error:
                self._listeners.remove(listener)
                self.stop = True
                self.failure = self.failure or _named(error, listener, event)


def _named(error: Exception, listener: AnyListener, event: Event) -> InputError:
    if isinstance(error, InputError):
        return error
    name = getattr(listener, "__name__", type(listener).__name__)
    failure = InputError(f"the listener {name} failed at step {event.step}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


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
