"""What a user sees of a long run: a progress bar on a terminal, a line per evaluation elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from implicitq.train import Evaluated, Event, Ticked

_REFRESH_SECONDS = 0.2


class Display:
    """Use as a context manager; `show` is cheap enough to be called at every step."""

    def __init__(self, title: str, step: int, until: int, enabled: bool = True) -> None:
        self._enabled = enabled and until > step
        self._until = until
        self._console = Console(stderr=True)
        self._first = (step, time.monotonic())
        self._shown = 0.0
        self._last = "no evaluation yet"
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.0f} steps/s"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[last]}"),
            console=self._console,
            disable=not (self._enabled and self._console.is_terminal),
        )
        self._task = self._progress.add_task(title, total=until, completed=step, rate=0.0, last=self._last)

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, event: Event) -> None:
        if not self._enabled:
            return
        match event:
            case Evaluated():
                done = event.evaluation
                self._last = f"return {done.mean:,.1f} ± {done.std:,.1f} at {done.step:,}"
                if not self._console.is_terminal:
                    self._console.print(
                        f"step {done.step:,} of {self._until:,}: {self._last.split(' at ')[0]} over "
                        f"{len(done.returns)} episodes, {self._rate(done.step):.0f} steps/s",
                        highlight=False,
                        soft_wrap=True,
                    )
            case Ticked() if time.monotonic() - self._shown > _REFRESH_SECONDS or event.step >= self._until:
                self._shown = time.monotonic()
                self._progress.update(self._task, completed=event.step, rate=self._rate(event.step), last=self._last)

    def _rate(self, step: int) -> float:
        first, since = self._first
        return (step - first) / max(1e-9, time.monotonic() - since)
