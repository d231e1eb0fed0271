"""Drives trainers: passes their events to listeners, and stops them at the end of a step when asked to."""

from __future__ import annotations

import functools
import inspect
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

import numpy as np

from implicitq.events import AnyListener, CheckpointDue, Event, Started, Stopped, Ticked
from implicitq.stacking import Together
from implicitq.train import Trainer
from implicitq.types import InputError


class Interrupted(KeyboardInterrupt):
    """Stopped by a signal, after the current step was finished and saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"interrupted at step {step}")
        self.signal_number = signal_number
        self.step = step


class Audience:
    """All listeners of a run. One that raises hears no more of it; the others go on to the end of the step."""

    def __init__(self, listeners: Iterable[AnyListener], agent: Any = None) -> None:
        """`agent` is who learns, for listeners that want to ask it."""
        self._listeners = list(listeners)
        self.agent = agent
        self.stop = False
        self.failure: InputError | None = None
        self.saved: int | None = None  # step of the last checkpoint

    def tell(self, event: Event) -> None:
        if isinstance(event, CheckpointDue):
            self.saved = event.step
        for listener in tuple(self._listeners):
            hear: Any = getattr(listener, "on_event", listener)
            try:
                answer = hear(event)
                if inspect.isfunction(answer):  # as callbacks.stop_at gives, and does nothing more
                    raise InputError("it returned a function; call it with its settings first, as stop_at(return_=300)")
                self.stop |= isinstance(answer, bool | np.bool_) and not answer
            except Exception as error:
                self._listeners.remove(listener)
                self.stop = True
                self.failure = self.failure or _named(error, listener, event)


def drive(trainer: Trainer, until: int, listeners: Iterable[AnyListener] = (), agent: Any = None) -> None:
    """Train up to the step `until`; every event goes to every listener, in their order.

    The run stops early, at the end of a step and after a checkpoint, if a listener returns False; if one raises, which
    is then raised from here with its name; or on a first Ctrl-C or SIGTERM, which raises `Interrupted`.
    """
    drive_together(Together([trainer]), until, [Audience(listeners, agent)])


def drive_together(together: Together, until: int, audiences: Sequence[Audience]) -> None:
    """As `drive`, for trainers in lockstep, each with its own listeners. What stops one of them stops all.

    That includes an error of one of them, in its environments or its training: the others still end the step.
    """
    with _signals_noted() as signals:
        try:
            for trainer, audience in zip(together.trainers, audiences, strict=True):
                audience.tell(Started(trainer.step, until, trainer.config, audience.agent, seed=trainer.config.seed))
            for events in together.run(until):
                for number, event in events.items():
                    audiences[number].tell(event)
                first = next(iter(events.values()))
                stop = signals or together.failures or any(audience.stop for audience in audiences)
                if stop and isinstance(first, Ticked) and first.step < until:
                    for number, event in events.items():
                        if audiences[number].saved != event.step:
                            audiences[number].tell(CheckpointDue(event.step, seed=event.seed))
                    break
            together.raise_failures()
            reached = together.step >= until
            for trainer, audience in zip(together.trainers, audiences, strict=True):
                why = "finished" if reached else "interrupted" if signals else _why(audiences)
                audience.tell(Stopped(together.step, why, seed=trainer.config.seed))
        except BaseException:
            for trainer, audience in zip(together.trainers, audiences, strict=True):
                audience.tell(Stopped(trainer.step, "failed", seed=trainer.config.seed))
            raise
    for number, audience in enumerate(audiences):
        if audience.failure is not None:
            raise together.named(number, audience.failure)
    if signals and not reached:
        raise Interrupted(signals[0], together.step)


def _why(audiences: Sequence[Audience]) -> Literal["asked", "failed"]:
    return "asked" if all(audience.failure is None for audience in audiences) else "failed"


def _named(error: Exception, listener: AnyListener, event: Event) -> InputError:
    """With the name of the listener, but for a sentence of one that is an object of ours, which says what is wrong."""
    ours = type(listener).__module__.startswith("implicitq.")
    if ours and isinstance(error, InputError):
        return error
    told = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    failure = InputError(f"the listener {_name(listener)} failed at step {event.step}: {told}")
    failure.__cause__ = error
    return failure


def _name(listener: Any) -> str:
    if isinstance(listener, functools.partial):
        return _name(listener.func)
    return getattr(listener, "__name__", type(listener).__name__)


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
