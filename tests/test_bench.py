"""The speed measurement measures training."""

import time

import gymnasium as gym
import pytest

from implicitq.bench import measure
from implicitq.configs import resolve
from toys import Toy

WARM_UP = 1_200  # steps before the clock runs
PAUSE = 0.02


class Slow(Toy):
    """Takes a known time per step, once the measurement has warmed up."""

    steps_taken = 0

    def step(self, action):
        Slow.steps_taken += 1
        if Slow.steps_taken > WARM_UP:
            time.sleep(PAUSE)
        return super().step(action)


@pytest.fixture
def slow_task(monkeypatch):
    monkeypatch.setattr(Slow, "steps_taken", 0)
    gym.register("Slow-v0", Slow)
    yield "Slow-v0"
    del gym.registry["Slow-v0"]


def test_whole_steps_hold_the_environment_and_bare_updates_do_not(slow_task):
    """An update of this network takes far less than a millisecond, a step of the environment twenty of them."""
    found = measure(resolve("iq", slow_task, hidden=(8,), batch_size=8), steps=15, repeats=2)
    assert Slow.steps_taken == WARM_UP + 2 * 15
    assert found["step_ms"] >= 1e3 * PAUSE
    assert found["steps_per_second"] <= 1 / PAUSE
    assert 0 < found["update_ms"] < 0.5 * 1e3 * PAUSE
    assert 0.5 < found["outside_update"] < 1
    assert found["versions"]["threads"] >= 1
