"""What a user sees of a long run: a progress bar on a terminal, a line per evaluation elsewhere."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from implicitq.events import Evaluated, Event, Measured, Started, Stopped, Ticked
from implicitq.types import Evaluation

_REFRESH_SECONDS = 0.2
_WINDOW_SECONDS = 60.0  # over which the pace is taken
_LEAST_SECONDS = 2.0  # before it is worth telling
_COMPILING = "compiling ..."


class ProgressDisplay:
    """A listener, cheap enough to hear of every step.

    It can listen to several runs that are trained in step: then it shows the mean over them, and of the evaluations
    their spread, the standard deviation of the runs' means.
    """

    def __init__(self, console: Console | None = None, runs: int = 1) -> None:
        self._console = console or Console(stderr=True)
        self._runs = runs
        self._task: TaskID | None = None
        self._measured: list[float] = []  # training returns of the runs that have told them at this step
        self._played: list[Evaluation] = []  # likewise
        # One line of 80 columns: what is longer is cut, and the bar takes what is left.
        self._progress = Progress(
            _text("[bold]{task.description}", 14),
            BarColumn(None, table_column=Column(min_width=5, ratio=1)),
            _text("{task.fields[done]}"),
            _text("{task.fields[pace]}"),
            _text("{task.fields[told]}"),
            console=self._console,
            disable=not self._console.is_terminal,
            expand=True,
        )

    def on_event(self, event: Event) -> None:
        match event:
            case Started():
                if self._task is None:  # of several runs, the first one's is that of all
                    self._begin(event)
            case Measured():
                self._measured.append(event.values.get("episode_return", math.nan))
                if len(self._measured) == self._runs:
                    latest = statistics.fmean(self._measured)
                    self._training = latest if math.isfinite(latest) else self._training
                    self._measured = []
            case Evaluated():
                self._played.append(event.evaluation)
                if len(self._played) == self._runs:
                    self._evaluations, self._played = self._played, []
                    self._print(self._evaluations)
            case Ticked():
                self._tick(event.step)
            case Stopped():
                self._progress.stop()

    def _begin(self, event: Started) -> None:
        self._until, self._first_update = event.until, event.config.min_replay
        self._stride = event.config.num_envs
        self._pace = _Pace(self._first_update)
        self._training, self._shown = math.nan, 0.0
        self._evaluations: list[Evaluation] = []  # the last one of every run
        self._task = self._progress.add_task(
            event.config.env, total=event.until, completed=event.step, done="", pace="", told=_COMPILING
        )
        self._progress.start()

    def _tick(self, step: int) -> None:
        assert self._task is not None
        self._pace.note(step)
        compiles = step < self._first_update <= step + self._stride  # the first update, which takes its time
        if not compiles and time.monotonic() - self._shown <= _REFRESH_SECONDS and step < self._until:
            return
        self._shown = time.monotonic()
        self._progress.update(
            self._task,
            completed=step,
            done=f"{step:,}/{short(self._until)}",
            pace=self._pace.told(self._until),
            told=_COMPILING if compiles else self._returns(step),
        )

    def _returns(self, step: int) -> str:
        told = [f"train {brief_number(self._training)}"] if math.isfinite(self._training) else []
        if self._evaluations:
            mean, spread = _over_runs(self._evaluations)
            told.append(f"eval {brief_number(mean)}" + (f"±{brief_number(spread)}" if self._runs > 1 else ""))
        return " ".join(told) or ("warming up" if step < self._first_update else "no episode yet")

    def _print(self, evaluations: list[Evaluation]) -> None:
        if self._console.is_terminal:
            return
        done, (mean, spread) = evaluations[0], _over_runs(evaluations)
        parts = [f"return {done.mean:,.1f} ± {done.std:,.1f} over {len(done.returns)} episodes"]
        if self._runs > 1:
            parts = [f"return {mean:,.1f} ± {spread:,.1f} over {self._runs} seeds"]
        if math.isfinite(self._training):
            parts.append(f"training {self._training:,.1f}")
        if pace := self._pace.told(self._until, done.step):
            parts.append(pace)
        line = f"step {done.step:,} of {self._until:,}: {', '.join(parts)}"
        self._console.print(line, highlight=False, soft_wrap=True)


def _over_runs(evaluations: list[Evaluation]) -> tuple[float, float]:
    """Mean and standard deviation of the runs' mean returns."""
    means = [done.mean for done in evaluations]
    return statistics.fmean(means), statistics.pstdev(means)


class _Pace:
    """Steps per second lately, and what is left at this pace. Steps before the first update are no guide to it."""

    def __init__(self, first_update: int) -> None:
        self._first_update = first_update
        self._noted: deque[tuple[int, float]] = deque()  # steps and times, at most some per second

    def note(self, step: int) -> None:
        now = time.monotonic()
        if self._noted and self._noted[-1][0] < self._first_update <= step:
            self._noted.clear()  # also leaves out the time that compiling took
        if not self._noted or now - self._noted[-1][1] > _REFRESH_SECONDS:
            self._noted.append((step, now))
        while now - self._noted[0][1] > _WINDOW_SECONDS and len(self._noted) > 2:
            self._noted.popleft()

    def told(self, until: int, step: int | None = None) -> str:
        """Such as `96/s, 3 min left`; the time only after the first update."""
        if not self._noted:
            return ""
        now = time.monotonic()
        first, since = self._noted[0]
        last = self._noted[-1][0] if step is None else step
        if now - since < _LEAST_SECONDS or last <= first:
            return ""
        rate = (last - first) / (now - since)
        pace = f"{rate:,.0f}/s"
        left = (until - last) / rate
        return f"{pace}, {duration(left)} left" if first >= self._first_update and left > 0 else pace


def _text(template: str, width: int | None = None) -> TextColumn:
    return TextColumn(template, table_column=Column(no_wrap=True, overflow="ellipsis", max_width=width))


def short(count: int) -> str:
    """A round number of steps in few characters: 300k, 1M; others in full."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count >= size and count % (size // 10) == 0:
            return f"{count / size:,.1f}".removesuffix(".0") + letter
    return f"{count:,}"


def brief_number(value: float) -> str:
    """A return in few characters: four digits or so."""
    decimals = 0 if abs(value) >= 1_000 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{decimals}f}"


def duration(seconds: float) -> str:
    """Two units at most: 3 d 4 h, 12 min, 40 s."""
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if days >= 2:
        return f"{int(days):,} d {int(hours) % 24} h"
    if hours >= 1:
        return f"{int(hours)} h {int(minutes) % 60} min"
    return f"{int(minutes)} min" if minutes >= 2 else f"{int(seconds)} s"
