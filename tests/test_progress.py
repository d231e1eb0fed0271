"""What a user sees of a run: a line per evaluation in a file, a bar with the last one on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from implicitq import progress
from implicitq.configs import resolve
from implicitq.events import Evaluated, Started, Stopped, Ticked
from implicitq.progress import ProgressDisplay
from implicitq.types import Evaluation

CONFIG = resolve("iq", "CartPole-v1")


class Clock:
    """Stands still until it is moved."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def evaluated(step: int, *returns: float) -> Evaluated:
    return Evaluated(Evaluation(returns, (7,) * len(returns), step))


def display(terminal: bool) -> tuple[ProgressDisplay, io.StringIO]:
    shown = io.StringIO()
    return ProgressDisplay(Console(file=shown, width=80, force_terminal=terminal, color_system=None)), shown


def test_away_from_a_terminal_every_evaluation_is_one_line_and_steps_are_none(clock):
    made, shown = display(terminal=False)
    made.on_event(Started(1_000, 21_000, CONFIG))
    for step in range(1_001, 1_101):
        made.on_event(Ticked(step))
    assert shown.getvalue() == ""
    clock.now += 50
    made.on_event(evaluated(11_000, 1_000.0, 2_000.0))
    clock.now += 150
    made.on_event(evaluated(21_000, -0.5, -0.5, -0.5))
    made.on_event(Stopped(21_000, "finished"))
    assert shown.getvalue().split("\n") == [  # rates count from where this run began
        "step 11,000 of 21,000: return 1,500.0 ± 500.0 over 2 episodes, 200 steps/s",
        "step 21,000 of 21,000: return -0.5 ± 0.0 over 3 episodes, 100 steps/s",
        "",
    ]


def test_a_line_is_not_broken_where_it_is_longer_than_the_console_is_wide(clock):
    made, shown = display(terminal=False)
    made.on_event(Started(0, 1_000_000_000, CONFIG))
    clock.now += 1
    made.on_event(evaluated(123_456_789, -1_234_567.25, 7_654_321.75))
    assert len(shown.getvalue()) > 81
    assert shown.getvalue().count("\n") == 1


def test_a_terminal_shows_the_task_the_steps_the_rate_and_the_last_evaluation(clock):
    made, shown = display(terminal=True)
    made.on_event(Started(0, 400, CONFIG))
    clock.now += 2
    made.on_event(evaluated(200, 10.0, 30.0))
    made.on_event(Ticked(200))
    clock.now += 2
    made.on_event(Ticked(400))
    made.on_event(Stopped(400, "finished"))
    # The columns fold at the width of the console, and every redrawing adds all lines: the last of them count.
    last = " ".join(shown.getvalue().split("\x1b[2K")[-1].split())
    for part in ("CartPole-v1", "400/400", "100", "steps/s", "return", "20.0", "10.0", "200"):
        assert part in last


def test_a_terminal_is_given_back_when_the_run_stops(clock):
    made, shown = display(terminal=True)
    made.on_event(Started(0, 400, CONFIG))
    assert "\x1b[?25l" in shown.getvalue()  # the cursor is hidden
    made.on_event(Stopped(3, "failed"))
    assert shown.getvalue().rstrip("\n").endswith("\x1b[?25h")  # and back
