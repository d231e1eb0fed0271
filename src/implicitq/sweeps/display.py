"""What a user sees of a sweep: a live table on a terminal, a line per event elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from rich import box
from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.table import Table
from rich.text import Text

from implicitq.progress import brief_number, duration
from implicitq.runs.layout import Progress, progress_of
from implicitq.sweeps.studies import PlannedRun

_REFRESH_SECONDS = 1.0
_NUMBERS = 56  # columns that the table takes besides the names of runs
_Active = list[tuple[PlannedRun, Progress]]


class Live:
    """Use as a context manager."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        self._console = console
        self._total, self._done, self._failed = total, done, 0
        self._rates: dict[str, float] = {}  # last known rate of every run
        self._shown = 0.0
        self._live = RichLive(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Live:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(Text(""), refresh=True)
            self._live.stop()

    def started(self, run: PlannedRun, attempt: int) -> None:
        if self._live is None:
            self._say(f"start {run.folder}" + (f", attempt {attempt}" if attempt > 1 else ""))

    def finished(self, run: PlannedRun, progress: Progress) -> None:
        self._done += 1
        score = "" if progress.score is None else f", last return {progress.score:,.1f}"
        self._say(f"done {run.folder}: {progress.step:,} steps{score} ({self._done} of {self._total})")

    def failed(self, run: PlannedRun, reason: str, again: bool) -> None:
        self._failed += not again
        self._say(f"{'crash' if again else 'FAILED'} {run.folder}: {reason}{'; trying again' if again else ''}")

    def stopping(self, active: int) -> None:
        self._say(f"stopping: {active} run(s) save a checkpoint")

    def refresh(self, out: Path, active: list[PlannedRun], waiting: list[PlannedRun], workers: int) -> None:
        if self._live is None or time.monotonic() - self._shown < _REFRESH_SECONDS:
            return
        self._shown = time.monotonic()
        progress = [(run, progress_of(out / run.folder, run.config().min_replay)) for run in active]
        self._live.update(Group(self._table(progress), self._summary(progress, waiting, workers)), refresh=True)

    def _table(self, progress: _Active) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("run", no_wrap=True)
        for column in ("done", "steps/s", "training", "evaluation", "time left"):
            table.add_column(column, justify="right", no_wrap=True)
        room = max(12, self._console.width - _NUMBERS)
        for run, now in progress:
            steps = run.config().steps
            if now.rate is not None:
                self._rates[run.folder] = now.rate
            table.add_row(
                run.folder if len(run.folder) <= room else f"…{run.folder[1 - room :]}",  # its end tells runs apart
                f"{now.step / steps:.0%}",
                "" if now.rate is None else f"{now.rate:,.0f}",
                "" if now.training is None else brief_number(now.training),
                "" if now.score is None else brief_number(now.score),
                "" if not now.rate else duration((steps - now.step) / now.rate),
            )
        return table

    def _summary(self, progress: _Active, waiting: list[PlannedRun], workers: int) -> Text:
        left = sum(run.config().steps - now.step for run, now in progress)
        left += sum(run.config().steps for run in waiting)
        text = f"{self._done} of {self._total} runs done, {len(waiting)} waiting, {self._failed} failed"
        if self._rates:
            mean = sum(self._rates.values()) / len(self._rates)
            text += f", about {duration(left / max(mean, 1e-9) / workers)} left"
        return Text(f"{text}\nCtrl-C stops; the same command goes on.")  # in one line they are wider than 80 columns

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
