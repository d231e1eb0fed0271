"""The observation normaliser against numbers computed by hand, and against NumPy over all rows at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicitq
import toys
from implicitq.normalization import Normalizer

FIRST = np.array([[1.0, 10.0], [3.0, 10.0]], np.float32)  # means 2 and 10, variances 1 and 0
SECOND = np.array([[6.0, 40.0]], np.float32)  # with it: means 10/3 and 20, variances 38/9 and 200


def after(*batches: np.ndarray, compiled: bool = False) -> Normalizer:
    normalizer = Normalizer.start(batches[0].shape[1])
    for batch in batches:
        normalizer = (jax.jit(Normalizer.seen) if compiled else Normalizer.seen)(normalizer, jnp.asarray(batch))
    return normalizer


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_moments_are_merged_over_batches_of_different_sizes(compiled):
    one, both = after(FIRST, compiled=compiled), after(FIRST, SECOND, compiled=compiled)
    np.testing.assert_allclose(one.mean, [2, 10], rtol=1e-6)
    np.testing.assert_allclose(one.variance, [1, 0], atol=1e-6)  # nothing is left of the variance 1 that it starts with
    np.testing.assert_allclose(both.mean, [10 / 3, 20], rtol=1e-6)
    np.testing.assert_allclose(both.variance, [38 / 9, 200], rtol=1e-6)
    assert float(both.seen_rows) == 3


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_observations_are_centred_scaled_and_clipped_at_ten(compiled):
    call = jax.jit(Normalizer.__call__) if compiled else Normalizer.__call__
    normalizer = Normalizer(jnp.array([2.0, -1.0]), jnp.array([4.0, 0.25]), jnp.array(5.0))
    rows = jnp.array([[2.0, -1.0], [4.0, 0.0], [-1.0, -2.5], [23.0, -9.0]])
    np.testing.assert_allclose(call(normalizer, rows), [[0, 0], [1, 2], [-1.5, -3], [10, -10]], rtol=1e-5)
    np.testing.assert_array_equal(call(normalizer, rows[1]), call(normalizer, rows)[1])  # one, or any leading shape
    np.testing.assert_array_equal(call(normalizer, rows.reshape(2, 2, 2)), call(normalizer, rows).reshape(2, 2, 2))


def test_before_any_batch_it_changes_nothing_but_what_is_beyond_ten():
    found = Normalizer.start(3)(jnp.array([0.5, -9.0, 12.0]))
    np.testing.assert_allclose(found, [0.5, -9.0, 10.0], rtol=1e-5)


def test_a_feature_that_never_moves_becomes_zero():
    np.testing.assert_array_equal(after(FIRST, FIRST)(jnp.asarray(FIRST))[:, 1], [0, 0])


def test_many_batches_agree_with_numpy_over_all_rows():
    """Features of very different sizes and offsets, one of which drifts."""
    generator = np.random.default_rng(0)
    scale, offset = np.array([1e-2, 1.0, 1e3]), np.array([5.0, -1.0, 2e3])
    batches = [
        (offset + scale * generator.normal((0, number / 10, 0), size=(rows, 3))).astype(np.float32)
        for number, rows in enumerate((1, 40, 7) * 20)
    ]
    rows = np.concatenate(batches).astype(np.float64)
    normalizer = after(*batches, compiled=True)
    np.testing.assert_allclose(normalizer.mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normalizer.variance, rows.var(0), rtol=1e-3)
    expected = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-6)
    np.testing.assert_allclose(normalizer(jnp.asarray(rows, jnp.float32)), expected, atol=2e-3)


def test_training_counts_the_observations_of_every_batch():
    settings = {**toys.SMALL, "min_replay": 20, "batch_size": 8, "eval_every": 10_000}
    agent = implicitq.make("iq", toys.Toy, **settings, normalize_observations=True).learn(24)
    arrays = {
        name.split("normalizer.")[-1]: a for name, a in agent._trainer.learner.arrays().items() if "normalizer." in name
    }
    assert arrays.keys() == {"mean", "variance", "seen_rows"}
    assert float(arrays["seen_rows"]) == 5 * 8  # an update after each of the steps 20 to 24
    assert (arrays["variance"] > 0).all()
    assert not np.array_equal(arrays["mean"], np.zeros(3))
    agent.close()
