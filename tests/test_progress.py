"""What a user sees of a run: a line per evaluation in a file, a bar with the last one on a terminal."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from implicitq import progress
from implicitq.configs import resolve
from implicitq.events import Evaluated, Measured, Started, Stopped, Ticked
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


def measured(step: int, value: float) -> Measured:
    return Measured(step, {"episode_return": value})


def last_line(made: ProgressDisplay, shown: io.StringIO) -> str:
    """What the terminal shows now: every redrawing begins by clearing the line."""
    made._progress.refresh()
    return shown.getvalue().split("\x1b[2K")[-1].split("\n")[0].strip("\r")


def test_away_from_a_terminal_every_evaluation_is_one_line_and_steps_are_none(clock):
    made, shown = display(terminal=False)
    made.on_event(Started(1_000, 21_000, CONFIG))
    for step in range(1_001, 1_101):
        made.on_event(Ticked(step))
    assert shown.getvalue() == ""
    clock.now += 50
    made.on_event(measured(11_000, float("nan")))
    made.on_event(evaluated(11_000, 1_000.0, 2_000.0))
    clock.now += 50
    made.on_event(measured(21_000, 987.65))
    made.on_event(evaluated(21_000, -0.5, -0.5, -0.5))
    made.on_event(Stopped(21_000, "finished"))
    assert shown.getvalue().split("\n") == [
        "step 11,000 of 21,000: return 1,500.0 ± 500.0 over 2 episodes, 200/s, 50 s left",
        "step 21,000 of 21,000: return -0.5 ± 0.0 over 3 episodes, training 987.6, 200/s",
        "",
    ]


def test_a_line_is_not_broken_where_it_is_longer_than_the_console_is_wide(clock):
    made, shown = display(terminal=False)
    made.on_event(Started(0, 1_000_000_000, CONFIG))
    made.on_event(Ticked(1_000))
    clock.now += 5
    made.on_event(evaluated(123_456_789, -1_234_567.25, 7_654_321.75))
    assert len(shown.getvalue()) > 81
    assert shown.getvalue().count("\n") == 1


def test_a_terminal_shows_one_line_of_80_columns_with_everything(clock):
    made, shown = display(terminal=True)
    made.on_event(Started(0, 1_000_000, dataclasses.replace(CONFIG, env="HalfCheetah-v5", min_replay=100)))
    made.on_event(Ticked(100))
    clock.now += 10
    made.on_event(measured(123_456, -1_234.56))
    made.on_event(evaluated(123_456, 10_000.0, 11_000.0))
    made.on_event(Ticked(123_456))
    line = last_line(made, shown)
    made.on_event(Stopped(123_456, "asked"))
    assert len(line) <= 80
    for part in ("HalfCheetah-v5", "123,456/1M", "12,336/s, 71 s left", "train -1,235 eval 10,500"):
        assert part in line


def test_the_time_left_is_not_that_of_the_warm_up(clock):
    made, shown = display(terminal=True)
    made.on_event(Started(0, 3_000, dataclasses.replace(CONFIG, min_replay=600)))
    assert "compiling ..." in last_line(made, shown)
    for step in range(1, 600):
        clock.now += 0.01
        made.on_event(Ticked(step))
        if step == 500:
            assert "100/s" in last_line(made, shown)
            assert "warming up" in last_line(made, shown)
    assert "left" not in shown.getvalue()
    assert "compiling ..." in last_line(made, shown), "the next step is the first with an update"
    clock.now += 7
    made.on_event(Ticked(600))
    for step in range(601, 701):
        clock.now += 0.1
        made.on_event(Ticked(step))
    assert "10/s, 3 min left" in last_line(made, shown), "2,300 steps, without the 7 seconds of compiling"
    made.on_event(Stopped(700, "asked"))


@pytest.mark.parametrize(
    ("count", "words"), [(575, "575"), (3_000, "3k"), (300_000, "300k"), (1_500_000, "1.5M"), (123_456, "123,456")]
)
def test_round_numbers_are_short(count, words):
    assert progress.short(count) == words


def test_a_terminal_is_given_back_when_the_run_stops(clock):
    made, shown = display(terminal=True)
    made.on_event(Started(0, 400, CONFIG))
    assert "\x1b[?25l" in shown.getvalue()  # the cursor is hidden
    made.on_event(Stopped(3, "failed"))
    assert shown.getvalue().rstrip("\n").endswith("\x1b[?25h")  # and back


def test_several_runs_in_step_show_their_mean_and_spread(clock):
    shown = io.StringIO()
    made = ProgressDisplay(Console(file=shown, width=80, force_terminal=True, color_system=None), runs=2)
    for _ in range(2):
        made.on_event(Started(0, 20_000, CONFIG))
    for value in (10.0, 30.0):
        made.on_event(measured(2_000, value))
    for value in (100.0, 300.0):
        made.on_event(evaluated(2_000, value))
    clock.now += 60
    for _ in range(2):
        made.on_event(Ticked(2_000))
    line = last_line(made, shown)
    assert "train 20.0 eval 200.0±100.0" in line
    assert len(line) <= 80
    away = io.StringIO()
    made = ProgressDisplay(Console(file=away, width=80), runs=2)
    for event in (
        Started(0, 20_000, CONFIG),
        evaluated(2_000, 100.0),
        evaluated(2_000, 300.0),
        Stopped(2_000, "asked"),
    ):
        made.on_event(event)
    assert away.getvalue().startswith("step 2,000 of 20,000: return 200.0 ± 100.0 over 2 seeds")
