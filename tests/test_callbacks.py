"""Callbacks: functions of the event that watch, save and stop."""

from __future__ import annotations

import pytest

import implicitq
from implicitq import InputError, callbacks, events
from implicitq.types import Evaluation


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
