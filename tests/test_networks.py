"""Networks against a NumPy forward pass."""

import jax
import numpy as np

from implicitq.networks import MLP, StateValue


def test_an_mlp_is_affine_layers_with_relu_in_between():
    network = MLP((3, 5, 4, 2), jax.random.key(0))
    inputs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    expected = inputs
    for number, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        expected = expected @ np.asarray(weight) + np.asarray(bias)
        if number < 2:
            expected = np.maximum(expected, 0)
    np.testing.assert_allclose(network(inputs), expected, rtol=1e-4, atol=1e-6)


def test_weights_start_uniform_within_the_fan_in_limit_and_biases_at_zero():
    network = MLP((300, 400, 1), jax.random.key(1))
    weights = np.asarray(network.weights[0])
    limit = np.sqrt(3 / 300)
    assert np.abs(weights).max() <= limit
    assert np.abs(weights).max() > 0.99 * limit
    assert abs(weights.std() * np.sqrt(300) - 1) < 0.02
    assert not np.asarray(network.biases[0]).any()


def test_a_state_value_gives_one_number_per_observation():
    assert StateValue(3, (8,), jax.random.key(0))(np.zeros((5, 3), np.float32)).shape == (5,)
