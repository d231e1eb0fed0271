"""Listeners: they hear everything in order, can stop a run, and cannot harm it."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import implicitq
from implicitq import InputError, callbacks, events
from implicitq.types import Evaluation


def stop_at_return(wanted: float):
    """The example of docs/training.md."""

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


def evaluated(step: int, mean: float) -> events.Evaluated:
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


def test_what_cannot_be_called_is_no_callback(small):
    agent = implicitq.make("iq", "toys:Toy-v0", **small)
    with pytest.raises(InputError, match="callback must be a function of the event, or a list of such, got 'print'"):
        agent.learn(callback=["print"])
    agent.close()


def test_stop_at_stops_when_the_return_is_reached_and_not_before():
    stop = callbacks.stop_at(return_=300)
    assert stop(events.Ticked(5)) is not False
    assert stop(evaluated(10, 299.9)) is not False
    assert stop(evaluated(20, 300.0)) is False


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
