"""What a user sees of a long run: a progress bar on a terminal, a line per evaluation elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from implicitq.events import Evaluated, Event, Started, Stopped, Ticked
from implicitq.types import Evaluation

_REFRESH_SECONDS = 0.2


class ProgressDisplay:
    """A listener, cheap enough to hear of every step."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.0f} steps/s"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[last]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def on_event(self, event: Event) -> None:
        match event:
            case Started():
                self._first, self._until = (event.step, time.monotonic()), event.until
                self._last, self._shown = "no evaluation yet", 0.0
                title = event.config.env
                self._task = self._progress.add_task(title, total=event.until, completed=event.step, rate=0.0, last="")
                self._progress.start()
            case Evaluated():
                self._show_evaluation(event.evaluation)
            case Ticked() if time.monotonic() - self._shown > _REFRESH_SECONDS or event.step >= self._until:
                self._shown = time.monotonic()
                self._progress.update(self._task, completed=event.step, rate=self._rate(event.step), last=self._last)
            case Stopped():
                self._progress.stop()

    def _show_evaluation(self, done: Evaluation) -> None:
        score = f"return {done.mean:,.1f} ± {done.std:,.1f}"
        self._last = f"{score} at {done.step:,}"
        if not self._console.is_terminal:
            self._console.print(
                f"step {done.step:,} of {self._until:,}: {score} over {len(done.returns)} episodes, "
                f"{self._rate(done.step):.0f} steps/s",
                highlight=False,
                soft_wrap=True,
            )

    def _rate(self, step: int) -> float:
        first, since = self._first
        return (step - first) / max(1e-9, time.monotonic() - since)
