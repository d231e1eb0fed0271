"""The multicategorical policy of Sec. 4 and App. B.2."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicitq.policies.multicategorical import Multicategorical, MulticategoricalPolicy, bin_centres
from implicitq.types import Spec

OBSERVATION = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def policy(categories=None, dimensions=2, bins=5, **options):
    return MulticategoricalPolicy(Spec(3, dimensions, categories), (16,), bins, jax.random.key(0), **options)


@pytest.mark.parametrize("bins", [2, 3, 11, 15])
def test_bins_follow_the_formula_of_the_paper(bins):
    low, high = -1.0, 1.0
    first = low + (high - low) / (2 * bins)
    expected = [first + j * (high - low) / bins for j in range(bins)]
    np.testing.assert_allclose(bin_centres(bins), expected, atol=1e-6)


def test_eleven_bins_have_the_centres_computed_by_hand():
    np.testing.assert_allclose(bin_centres(11)[[0, 5, 10]], [-10 / 11, 0, 10 / 11], atol=1e-6)


def test_log_probability_of_known_logits_matches_hand_computed_numbers():
    logits = jnp.log(jnp.array([[[1.0, 2.0, 1.0], [3.0, 1.0, 4.0]]]))
    log_pi = Multicategorical(logits).log_prob(jnp.array([[1, 0]]))
    np.testing.assert_allclose(log_pi, [np.log(2 / 4 * 3 / 8)], rtol=1e-6)


def test_entropy_of_known_logits_matches_hand_computed_numbers():
    logits = jnp.log(jnp.array([[[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1e-30, 1e-30]]]))
    np.testing.assert_allclose(Multicategorical(logits).entropy(jax.random.key(0)), [[np.log(4), np.log(2)]], rtol=1e-5)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("categories", [None, (4,), (3, 5, 2)])
def test_probabilities_of_all_actions_sum_to_one(categories, scaled):
    made = policy(categories, dimensions=len(categories or (0, 0)), scaled=scaled)
    distribution = made(OBSERVATION, 0.1)
    actions = itertools.product(*(range(n) for n in made.categories))
    total = sum(jnp.exp(distribution.log_prob(jnp.tile(jnp.array([action]), (4, 1)))) for action in actions)
    np.testing.assert_allclose(total, np.ones(4), rtol=1e-5)


def test_categories_that_a_dimension_lacks_are_never_sampled_and_give_no_gradient():
    made = policy((3, 5, 2), dimensions=3)
    distribution = made(np.repeat(OBSERVATION, 500, axis=0), 1.0)
    sampled = np.asarray(distribution.sample(jax.random.key(1)))
    assert (sampled.max(axis=0) == [2, 4, 1]).all()
    gradient = jax.grad(lambda p: jnp.sum(p(OBSERVATION, 1.0).log_prob(jnp.zeros((4, 3), int))))(made)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    entropy_gradient = jax.grad(lambda p: jnp.sum(p(OBSERVATION, 1.0).entropy(jax.random.key(0))))(made)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(entropy_gradient))


def test_samples_follow_the_probabilities():
    logits = jnp.log(jnp.tile(jnp.array([[[0.5, 0.3, 0.2]]]), (20_000, 1, 1)))
    sampled = np.asarray(Multicategorical(logits).sample(jax.random.key(0)))
    shares = np.bincount(sampled[:, 0]) / len(sampled)
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.2], atol=0.015)  # four standard errors


def test_the_scaled_form_divides_the_network_by_the_temperature():
    plain, scaled = policy(), policy(scaled=True)
    np.testing.assert_allclose(scaled(OBSERVATION, 0.5).logits, 2 * plain(OBSERVATION, 0.5).logits, rtol=1e-6)


def test_the_plain_form_does_not_depend_on_the_temperature():
    np.testing.assert_array_equal(policy()(OBSERVATION, 0.5).logits, policy()(OBSERVATION, 5.0).logits)


def test_encode_inverts_decode_and_finds_the_nearest_bin():
    made = policy(bins=11, dimensions=1)
    every = jnp.arange(11)[:, None]
    np.testing.assert_array_equal(made.encode(made.decode(every)), every)
    values = np.linspace(-1.2, 1.2, 101, dtype=np.float32)
    values = values[np.abs((values + 1) * 5.5 - np.round((values + 1) * 5.5)) > 1e-3]  # not on an edge of two bins
    nearest = np.abs(values[:, None] - bin_centres(11)[None]).argmin(axis=1)
    np.testing.assert_array_equal(made.encode(values[:, None])[:, 0], nearest)


def test_the_deterministic_action_is_the_expected_bin_for_boxes_and_the_mode_otherwise():
    logits = jnp.log(jnp.array([[[0.5, 0.2, 0.3]]]))
    expected = 0.5 * (-2 / 3) + 0.3 * (2 / 3)
    box = Multicategorical(logits, continuous=True).deterministic()
    np.testing.assert_allclose(box, [[expected]], rtol=1e-5)
    discrete = Multicategorical(logits).deterministic()
    np.testing.assert_array_equal(discrete, [[0]])


@pytest.mark.parametrize(("bins", "dtype"), [(11, np.uint8), (256, np.uint8), (257, np.uint16)])
def test_actions_are_stored_in_the_smallest_type_that_holds_them(bins, dtype):
    assert policy(bins=bins).action_dtype == dtype


@pytest.mark.parametrize("bins", [2, 11])
def test_a_density_integrates_to_one_and_has_the_entropy_of_its_steps(bins):
    """Of a uniform policy on [-1, 1]^2: density 1/4, entropy ln 2 per dimension, however many bins there are."""
    made = policy(bins=bins, density=True)
    actions = jnp.array(list(itertools.product(range(bins), repeat=2)))
    distribution = made(np.repeat(OBSERVATION[:1], bins**2, axis=0), 1.0)
    cell = (2 / bins) ** 2
    assert float(jnp.sum(jnp.exp(distribution.log_prob(actions)) * cell)) == pytest.approx(1, rel=1e-5)
    by_steps = -float(jnp.sum(jnp.exp(distribution.log_prob(actions)) * cell * distribution.log_prob(actions)))
    assert float(jnp.sum(distribution.entropy(jax.random.key(0))[0])) == pytest.approx(by_steps, rel=1e-4)

    uniform = made.distribution(jnp.zeros((1, 2 * bins)), 1.0)
    np.testing.assert_allclose(uniform.log_prob(jnp.array([[0, 1]])), [np.log(1 / 4)], rtol=1e-6)
    np.testing.assert_allclose(uniform.entropy(jax.random.key(0)), [[np.log(2), np.log(2)]], rtol=1e-6)


def test_the_default_entropy_target_is_the_same_policy_in_both_measures():
    assert policy(bins=11).entropy_goal == pytest.approx(0.3 * np.log(11))
    assert policy(bins=11, density=True).entropy_goal == pytest.approx(0.3 * np.log(11) + np.log(2 / 11))


def test_discrete_actions_have_no_density():
    made = policy((4, 4), density=True)
    assert made.entropy_goal == policy((4, 4)).entropy_goal
    np.testing.assert_array_equal(
        made(OBSERVATION, 1.0).log_prob(jnp.zeros((4, 2), int)),
        policy((4, 4))(OBSERVATION, 1.0).log_prob(jnp.zeros((4, 2), int)),
    )
