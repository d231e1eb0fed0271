"""Listeners: they hear everything in order, can stop a run, and cannot harm it; what a user sees of a run."""

from __future__ import annotations

import dataclasses
import functools
import io
import os
import signal
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import implicitq
from implicitq import InputError, callbacks, events, progress
from implicitq.configs import resolve
from implicitq.events import Evaluated, Measured, Started, Stopped, Ticked
from implicitq.progress import ProgressDisplay
from implicitq.runs.folder import RunFolder
from implicitq.types import Evaluation


def stop_at_return(wanted: float):
    """A callback of the kind that docs/tracking.md shows."""

    def listener(event: events.Event) -> bool | None:
        if isinstance(event, events.Evaluated):
            return event.evaluation.mean < wanted  # False stops the run

    return listener


def test_every_event_arrives_in_order_at_functions_and_objects(small):
    class Keeper:
        def __init__(self) -> None:
            self.heard: list[events.Event] = []

        def on_event(self, event: events.Event) -> None:
            self.heard.append(event)

    keeper, heard = Keeper(), []
    agent = implicitq.make("iq", "toys:Toy-v0", **small).learn(80, listeners=[keeper, heard.append])
    agent.close()
    assert keeper.heard == heard
    first, *others, last = heard
    assert first == events.Started(0, 80, agent.config)
    assert last == events.Stopped(80, "finished")
    assert [type(event).__name__ for event in others[-5:]] == [
        "Ticked", "Measured", "Evaluated", "CheckpointDue", "Ticked"
    ]  # fmt: skip
    assert [event.step for event in others if isinstance(event, events.Ticked)] == list(range(1, 81))
    assert [event.step for event in others if isinstance(event, events.Evaluated)] == [40, 80]


def test_a_run_can_stop_early_and_goes_on_as_if_it_had_not(small, tmp_path, files_of):
    whole = implicitq.make("iq", "toys:Toy-v0", **small).learn(out=tmp_path / "whole")
    part = implicitq.make("iq", "toys:Toy-v0", **small)
    heard = []
    part.learn(out=tmp_path / "part", listeners=[stop_at_return(-1e9), heard.append])
    assert part.step == 40, "at the first evaluation, whose return is above that"
    assert heard[-1] == events.Stopped(40, "asked")
    part.close()
    implicitq.resume(tmp_path / "part", trust_env=True).learn().close()
    whole.close()
    assert files_of(tmp_path / "part") == files_of(tmp_path / "whole")


def test_stopping_between_checkpoints_saves_one(small, tmp_path):
    agent = implicitq.make("iq", "toys:Toy-v0", **small)
    agent.learn(out=tmp_path / "run", listeners=[lambda event: event.step < 55])
    agent.close()
    agent = implicitq.resume(tmp_path / "run", trust_env=True)
    assert agent.step == 55
    agent.close()


def test_a_listener_that_raises_stops_the_run_after_a_checkpoint_and_is_named(small, tmp_path):
    heard = []

    def clumsy(event: events.Event) -> None:
        if isinstance(event, events.Measured) and event.step == 60:
            raise ZeroDivisionError("oh")

    agent = implicitq.make("iq", "toys:Toy-v0", **small)
    with pytest.raises(InputError, match="the listener clumsy failed at step 60: ZeroDivisionError: oh") as caught:
        agent.learn(out=tmp_path / "run", listeners=[clumsy, heard.append])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert heard[-3:] == [events.Ticked(60), events.CheckpointDue(60), events.Stopped(60, "failed")]
    agent.close()
    agent = implicitq.resume(tmp_path / "run", trust_env=True)
    assert agent.step == 60
    agent.close()


def test_a_sentence_of_a_listener_is_named_and_one_of_ours_stays_as_it_is(small, tmp_path, monkeypatch):
    def refuse(*_: Any) -> None:
        raise InputError("this will not do")

    class Strict:
        def on_event(self, event: events.Event) -> None:
            refuse()

    with implicitq.make("iq", "toys:Toy-v0", **small) as agent:
        for listener, name in ((refuse, "refuse"), (functools.partial(refuse, 1), "refuse"), (Strict(), "Strict")):
            with pytest.raises(InputError, match=rf"^the listener {name} failed at step \d: this will not do$"):
                agent.learn(listeners=[listener])
    monkeypatch.setattr(RunFolder, "on_event", refuse)
    with implicitq.make("iq", "toys:Toy-v0", **small) as agent, pytest.raises(InputError, match=r"^this will not do$"):
        agent.learn(out=tmp_path / "run")


def test_what_the_environment_raises_comes_through_and_the_others_hear_of_the_end(small):
    heard = []
    agent = implicitq.make("iq", "toys:Breaks-v0", **small)
    with pytest.raises(InputError, match="the environment failed in step: ZeroDivisionError"):
        agent.learn(listeners=[heard.append])
    assert heard[-1] == events.Stopped(74, "failed")
    agent.close()


def test_a_signal_in_the_last_step_finds_a_finished_run(small):
    def late(event: events.Event) -> None:
        if isinstance(event, events.CheckpointDue) and event.step == 120:
            os.kill(os.getpid(), signal.SIGINT)

    agent = implicitq.make("iq", "toys:Toy-v0", **small)
    agent.learn(listeners=[late])
    assert agent.step == 120
    agent.close()


def test_the_run_folder_draws_the_learning_curve_also_of_a_run_that_was_stopped(small, tmp_path):
    agent = implicitq.make("iq", "toys:Toy-v0", **small)
    agent.learn(out=tmp_path / "run", listeners=[stop_at_return(-np.inf)])
    agent.close()
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")


def evaluation_of(step: int, mean: float) -> events.Evaluated:
    return events.Evaluated(Evaluation((mean,), (1,), step))


def test_a_callback_stops_the_run_by_returning_false(small):
    agent = implicitq.make("iq", "toys:Toy-v0", **small)
    agent.learn(callback=lambda event: event.step < 33)
    assert agent.step == 33
    agent.close()


def test_several_callbacks_hear_the_same_beside_listeners(small):
    one, other, third = [], [], []
    agent = implicitq.make("iq", "toys:Toy-v0", **small)
    agent.learn(30, callback=[one.append, other.append], listeners=[third.append])
    agent.close()
    assert one == other == third
    assert one[0].agent is agent
    assert [type(event).__name__ for event in one].count("Ticked") == 30


@pytest.mark.parametrize("argument", ["callback", "listeners"])
@pytest.mark.parametrize("given", ["print", ["print"], [print, "print"]])
def test_what_can_hear_no_event_is_refused_before_there_is_a_run_folder(argument, given, small, tmp_path):
    accepted = "must be a function of the event, an object with on_event, or a list of such, got 'print'"
    agent = implicitq.make("iq", "toys:Toy-v0", **small)
    with pytest.raises(InputError, match=f"^{argument} {accepted}$"):
        agent.learn(out=tmp_path / "run", **{argument: given})
    agent.close()
    assert not (tmp_path / "run").exists()


def test_one_listener_need_not_be_in_a_list_and_may_be_a_list_itself():
    class Log(list):
        def on_event(self, event: events.Event) -> None:
            self.append(event)

    log = Log([1])
    assert events.as_listeners("listeners", log) == [log]
    assert events.as_listeners("listeners", (log, print)) == [log, print]


def test_stop_at_stops_when_the_return_is_reached_and_not_before():
    stop = callbacks.stop_at(return_=300)
    assert stop(events.Ticked(5)) is not False
    assert stop(evaluation_of(10, 299.9)) is not False
    assert stop(evaluation_of(20, 300.0)) is False


def test_stop_at_ends_a_run_at_its_evaluation(small):
    agent = implicitq.make("iq", "toys:Toy-v0", **small).learn(callback=implicitq.callbacks.stop_at(return_=-1e9))
    assert agent.step == 40
    agent.close()


@pytest.mark.parametrize(("num_envs", "wanted"), [(1, [25, 50, 75, 100]), (4, [28, 52, 76, 100])])
def test_every_calls_at_the_first_step_that_reached_a_multiple(small, num_envs, wanted):
    seen = []
    agent = implicitq.make("iq", "toys:Toy-v0", **small, num_envs=num_envs)
    agent.learn(52, callback=callbacks.every(25, lambda event: seen.append(event.step)))
    agent.learn(48, callback=callbacks.every(25, lambda event: seen.append(event.step)))
    agent.close()
    assert seen == wanted


def test_every_can_stop_the_run_too(small):
    agent = implicitq.make("iq", "toys:Toy-v0", **small).learn(callback=callbacks.every(35, lambda event: False))
    assert agent.step == 35
    agent.close()
    with pytest.raises(InputError, match="n_steps must be a whole number of at least 1, got 0"):
        callbacks.every(0, print)


def test_keep_best_keeps_the_first_of_the_best_policies(small, tmp_path):
    done = []
    agent = implicitq.make("iq", "toys:Toy-v0", **small)

    def note(event: events.Event) -> None:
        if isinstance(event, events.Evaluated):
            done.append(event.evaluation)

    agent.learn(callback=[callbacks.keep_best(tmp_path / "best.policy"), note])
    agent.close()
    best = implicitq.load(tmp_path / "best.policy", trust_env=True)
    assert best.step == max(done, key=lambda evaluation: evaluation.mean).step


# The progress display: a line per evaluation in a file, a bar with the last one on a terminal.


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
