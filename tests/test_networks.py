"""Networks against a NumPy forward pass."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from implicitq.networks import MLP, BatchNorm, StateValue
from implicitq.types import Spec


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
    assert StateValue(Spec(3, 1, None), (8,), jax.random.key(0))(np.zeros((5, 3), np.float32)).shape == (5,)


def test_batch_normalisation_by_the_statistics_of_both_batches_matches_hand_computed_numbers():
    """1, 3 and 5, 7: mean 4, variance 5."""
    inputs, beside, moved = BatchNorm(1).train(jnp.array([[1.0], [3.0]]), jnp.array([[5.0], [7.0]]))
    expected = (np.array([[1.0], [3.0], [5.0], [7.0]]) - 4) / np.sqrt(5.001)
    np.testing.assert_allclose(np.concatenate([inputs, beside]), expected, rtol=1e-6)
    np.testing.assert_allclose([moved.mean, moved.variance], [[0.04], [0.99 + 0.05]], rtol=1e-6)


def test_running_statistics_reach_those_of_the_data_and_normalise_it_when_acting():
    generator = np.random.default_rng(0)
    network = MLP((3, 16, 2), jax.random.key(0), batch_norm=True)

    def batch(rows: int) -> jax.Array:
        return jnp.asarray(generator.normal([1.0, -5.0, 100.0], [1.0, 0.1, 30.0], size=(rows, 3)), jnp.float32)

    seen = jax.jit(lambda network, rows: network.train(rows, jnp.zeros((0, 3)))[-1])
    for _ in range(1_000):
        network = seen(network, batch(512))
    np.testing.assert_allclose(network.norms[0].mean, [1.0, -5.0, 100.0], rtol=0.05)
    np.testing.assert_allclose(network.norms[0].variance, [1.0, 0.01, 900.0], rtol=0.05)
    rows = batch(20_000)
    trained, _, _ = network.train(rows, rows[:0])
    np.testing.assert_allclose(network(rows), trained, atol=0.1)


def test_gradients_through_batch_statistics_are_right_and_none_go_through_what_is_beside():
    network = MLP((3, 8, 2), jax.random.key(0), batch_norm=True)
    inputs, beside = jax.random.normal(jax.random.key(1), (2, 6, 3))

    def parameters(network):
        first, second = network.norms
        return [*network.weights, *network.biases, first.scale, second.scale, first.shift, second.shift]

    def by_hand(parameters, inputs):
        """The same with jnp's mean and variance, and the rows beside held fixed layer by layer."""
        rows, others = inputs, beside
        weights, biases, scales, shifts = (parameters[start : start + 2] for start in (0, 2, 4, 6))
        for number in range(2):
            both = jnp.concatenate([rows, jax.lax.stop_gradient(others)])
            both = (both - both.mean(0, keepdims=True)) / jnp.sqrt(both.var(0, keepdims=True) + 1e-3)
            both = both * scales[number][None] + shifts[number][None]
            both = both @ weights[number] + biases[number][None]
            both = jax.nn.relu(both) if number == 0 else both
            rows, others = both[:6], both[6:]
        return jnp.sum(jnp.sin(rows))

    def ours(given, inputs, beside):
        made = eqx.tree_at(parameters, network, given)
        here, there, _ = made.train(inputs, beside)
        return jnp.sum(jnp.sin(here)) + jnp.sum(there)

    expected = jax.grad(by_hand, argnums=(0, 1))(parameters(network), inputs)
    *found, through_beside = jax.grad(ours, argnums=(0, 1, 2))(parameters(network), inputs, beside)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    assert not np.asarray(through_beside).any()


def test_a_network_without_batch_normalisation_has_no_parameters_for_it():
    assert not jax.tree.leaves(MLP((3, 4, 2), jax.random.key(0)).norms)
    assert len(jax.tree.leaves(MLP((3, 4, 2), jax.random.key(0), batch_norm=True).norms)) == 2 * 4
