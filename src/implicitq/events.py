"""What happens in a run, and who wants to know: the run folder, the progress display, a tracker, your own function.

A listener is an object with `on_event(event)`, or a plain function of the event. It receives every event, and returns
False to ask the run to stop at the end of the step. One that listens to several seeds, which learn in step, hears the
events of all of them; `event.seed` says which one it is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from implicitq.configs import Config
from implicitq.types import Evaluation, InputError
from implicitq.validation import brief


@dataclass(frozen=True, kw_only=True)
class _OfRun:
    """What all events have besides their `step`."""

    seed: int | None = field(default=None, compare=False)  # of the run that it happens in; None if unknown


@dataclass(frozen=True)
class Started(_OfRun):
    """Training begins at `step`, or goes on from there, and is to end at `until`."""

    step: int  # environment steps trained before
    until: int  # where it is to end
    config: Config  # all settings
    agent: Any = field(default=None, compare=False, repr=False)  # who learns, to be asked or saved; None if unknown


@dataclass(frozen=True)
class Measured(_OfRun):
    """Means since the last row of metrics; nan where there was nothing to average."""

    step: int  # environment steps so far
    values: dict[str, float]  # column of metrics.csv -> value


@dataclass(frozen=True)
class Evaluated(_OfRun):
    """Whole episodes were played with the deterministic policy."""

    evaluation: Evaluation

    @property
    def step(self) -> int:
        """Environment steps of training when it was made."""
        return self.evaluation.step


@dataclass(frozen=True)
class CheckpointDue(_OfRun):
    """Whoever keeps the run should save it now."""

    step: int


@dataclass(frozen=True)
class Ticked(_OfRun):
    """One more step of every environment is done; follows all other events of the step."""

    step: int


@dataclass(frozen=True)
class Stopped(_OfRun):
    """The last event: the planned end, a listener that asked to stop, a signal such as Ctrl-C, or an error."""

    step: int  # environment steps so far
    reason: Literal["finished", "asked", "interrupted", "failed"]  # which of the four


Event = Started | Measured | Evaluated | CheckpointDue | Ticked | Stopped


class Listener(Protocol):
    """Who wants to know of a run, as an object."""

    def on_event(self, event: Event) -> bool | None:
        """Receive an event; False asks the run to stop at the end of this step, after a checkpoint."""
        ...


AnyListener = Listener | Callable[[Event], bool | None]


def as_listeners(name: str, given: Any) -> list[AnyListener]:
    """The argument `name` of a user, one listener or several, or None; what can hear no event is refused."""
    if given is None:
        return []
    several = isinstance(given, Iterable) and not isinstance(given, str) and not _can_hear(given)
    found: list[Any] = list(given) if several else [given]
    for each in found:
        if not _can_hear(each):
            raise InputError(
                f"{name} must be a function of the event, an object with on_event, or a list of such, got {brief(each)}"
            )
    return found


def with_agent(callbacks: Iterable[Any], agent: Any) -> list[AnyListener]:
    """The callbacks, where those that take two arguments get the agent first, and then the event."""
    return [functools.partial(each, agent) if _takes_two(each) else each for each in callbacks]


def _takes_two(callback: Any) -> bool:
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        return callable(callback)
    except ValueError:  # it does not tell
        pass
    return False


def _can_hear(listener: Any) -> bool:
    return callable(getattr(listener, "on_event", listener))
