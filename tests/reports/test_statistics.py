"""Aggregates against hand-computed numbers and against what rliable gave for the same matrices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from implicitq.reports import statistics

REFERENCE = json.loads(Path(__file__).with_name("rliable_reference.json").read_text())
X, Y = np.array(REFERENCE["x"]), np.array(REFERENCE["y"])


@pytest.mark.parametrize(("name", "matrix"), [("x", X), ("y", Y)])
def test_aggregates_equal_those_of_rliable(name, matrix):
    for number, aggregate in enumerate(REFERENCE["order"]):
        value = float(statistics.AGGREGATES[aggregate](matrix))
        assert value == pytest.approx(REFERENCE["aggregates"][name][number], abs=1e-12)


@pytest.mark.parametrize(("name", "matrix"), [("x", X), ("y", Y)])
def test_intervals_agree_with_rliable_up_to_the_noise_of_resampling(name, matrix):
    found = statistics.intervals(matrix, np.random.default_rng(0), 20_000)
    low, high = REFERENCE["intervals"][name]
    for number, aggregate in enumerate(REFERENCE["order"]):
        width = high[number] - low[number]
        assert found[aggregate].low == pytest.approx(low[number], abs=0.04 * width)
        assert found[aggregate].high == pytest.approx(high[number], abs=0.04 * width)


def test_probability_of_improvement_equals_that_of_rliable():
    found = statistics.improvement(X, Y, np.random.default_rng(0))
    assert found.value == pytest.approx(REFERENCE["improvement"]["value"][0], abs=1e-12)
    low, high = REFERENCE["improvement"]["interval"]
    assert found.low == pytest.approx(low[0], abs=0.02)
    assert found.high == pytest.approx(high[0], abs=0.02)


@pytest.mark.parametrize(("name", "matrix"), [("x", X), ("y", Y)])
def test_profiles_equal_those_of_rliable(name, matrix):
    found = statistics.profile(matrix, np.array(REFERENCE["thresholds"]))
    np.testing.assert_allclose(found, REFERENCE["profiles"][name], atol=1e-12)


def test_aggregates_by_hand_with_a_missing_seed():
    scores = np.array([[1.0, 4.0], [3.0, 8.0], [np.nan, 6.0]])
    assert statistics.mean(scores) == (2 + 6) / 2
    assert statistics.median(scores) == (2 + 6) / 2
    assert statistics.iqm(scores) == (3 + 4 + 6) / 3  # 5 runs: one cut at each end
    assert statistics.profile(scores, np.array([3.5]))[0] == (0 + 1) / 2


def test_ties_count_half():
    assert statistics.probability_of_improvement(np.ones((2, 1)), np.ones((3, 1))) == 0.5


def test_resampling_stays_within_each_task_and_depends_on_the_generator_alone():
    scores = np.array([[1.0, 10.0], [2.0, 20.0], [np.nan, 30.0]])
    samples = statistics.resampled(scores, np.random.default_rng(3), 50)
    assert np.isnan(samples[:, 2, 0]).all()
    assert set(np.unique(samples[:, :2, 0])) == {1.0, 2.0}
    assert set(np.unique(samples[..., 1])) == {10.0, 20.0, 30.0}
    np.testing.assert_array_equal(samples, statistics.resampled(scores, np.random.default_rng(3), 50))


@pytest.mark.parametrize("scores", [[[0.5, 0.7]], [[0.4, 0.7], [0.6, np.nan]]])
def test_a_task_with_a_single_seed_leaves_the_bounds_open(scores):
    matrix, generator = np.array(scores), np.random.default_rng(0)
    found = [
        *statistics.intervals(matrix, generator, 20).values(),
        statistics.improvement(matrix, np.ones((3, 2)), generator, 20),
    ]
    assert found[1].value == pytest.approx(0.6)
    for interval in found:
        assert np.isfinite(interval.value)
        assert np.isnan(interval.low)
        assert np.isnan(interval.high)
    for value, low, high in (
        statistics.profile_band(matrix, np.array([0.0, 0.5]), generator, 20),
        statistics.curve_band(matrix[None], statistics.iqm, generator, 20),
    ):
        assert np.isfinite(value).all()
        assert np.isnan([low, high]).all()
