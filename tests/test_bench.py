"""The speed measurement measures training."""

import pytest

from implicitq.bench import measure
from implicitq.configs import resolve


def test_a_measurement_reports_whole_steps_and_bare_updates():
    found = measure(resolve("iq", "Pendulum-v1", hidden=(8,), batch_size=8), steps=50, repeats=2)
    assert found["steps_per_second"] == pytest.approx(1000 / found["step_ms"])
    assert found["update_ms"] > 0
    assert found["outside_update"] == pytest.approx(1 - found["update_ms"] / found["step_ms"])
    assert found["versions"]["threads"] >= 1
