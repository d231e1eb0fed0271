"""Every policy class: sums and integrals of one, numbers by hand and by SciPy, tasks that no product solves."""

from __future__ import annotations

import itertools
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import implicitq
from implicitq import configs, policies
from implicitq.algorithms import iq
from implicitq.algorithms.implicit import Targets
from implicitq.networks import MLP
from implicitq.policies.autoregressive import AutoregressivePolicy
from implicitq.policies.flow import Flow, FlowPolicy, Spline
from implicitq.policies.gaussian import Gaussian, GaussianPolicy, TruncatedGaussian
from implicitq.policies.multicategorical import Multicategorical, MulticategoricalPolicy, bin_centres, cosine_basis
from implicitq.policies.tanh_gaussian import TanhGaussian, TanhGaussianPolicy
from implicitq.types import InputError, Spec, Transition

OBSERVATION = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def multicategorical(categories=None, dimensions=2, bins=5, **options):
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
    made = multicategorical(categories, dimensions=len(categories or (0, 0)), scaled=scaled)
    distribution = made(OBSERVATION, 0.1)
    actions = itertools.product(*(range(n) for n in made.categories))
    total = sum(jnp.exp(distribution.log_prob(jnp.tile(jnp.array([action]), (4, 1)))) for action in actions)
    np.testing.assert_allclose(total, np.ones(4), rtol=1e-5)


def test_categories_that_a_dimension_lacks_are_never_sampled_and_give_no_gradient():
    made = multicategorical((3, 5, 2), dimensions=3)
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
    plain, scaled = multicategorical(), multicategorical(scaled=True)
    np.testing.assert_allclose(scaled(OBSERVATION, 0.5).logits, 2 * plain(OBSERVATION, 0.5).logits, rtol=1e-6)


def test_the_plain_form_does_not_depend_on_the_temperature():
    np.testing.assert_array_equal(
        multicategorical()(OBSERVATION, 0.5).logits, multicategorical()(OBSERVATION, 5.0).logits
    )


def test_cosines_of_three_bins_are_those_computed_by_hand():
    slow, fast = np.sqrt(2) * np.sqrt(3) / 2, np.sqrt(2) / 2  # cos 30 degrees; half of cos 60 and of cos 180
    np.testing.assert_allclose(cosine_basis(3), [[slow, 0, -slow], [fast / 2, -fast, fast / 2]], atol=1e-6)


@pytest.mark.parametrize("bins", [2, 11])
def test_cosines_reach_all_logits_but_for_a_constant_and_spread_to_neighbouring_bins(bins):
    basis = cosine_basis(bins).astype(np.float64)
    assert np.linalg.matrix_rank(basis) == bins - 1
    np.testing.assert_allclose(basis.sum(axis=1), 0, atol=1e-5)
    learnt = basis.T @ basis[:, 0]  # how F of every bin moves with that of the first
    assert (np.diff(learnt) < 0).all()


def test_a_policy_of_cosines_is_the_softmax_of_their_sum():
    made = multicategorical(bins=5, cosines=True)
    assert made.network.outputs == 2 * 4
    outputs = np.asarray(made.network(OBSERVATION)).reshape(4, 2, 4)
    np.testing.assert_allclose(
        made(OBSERVATION, 0.1).probabilities(), jax.nn.softmax(outputs @ cosine_basis(5)), rtol=1e-5
    )


def test_choices_without_an_order_have_no_cosines():
    assert multicategorical((3, 5), cosines=True).network.outputs == 2 * 5


def test_nearby_actions_are_one_bin_away_as_often_as_wanted_and_never_beyond_the_bounds():
    made = multicategorical(bins=5)
    inner, low = jnp.full((4_000, 1), 2), jnp.zeros((4_000, 1), jnp.int32)
    moved = np.asarray(made.nearby(inner, jax.random.key(1), 0.3))
    shares = [np.mean(moved == value) for value in (1, 2, 3)]
    np.testing.assert_allclose(shares, [0.15, 0.7, 0.15], atol=0.03)  # four standard errors
    assert set(np.unique(made.nearby(low, jax.random.key(1), 1.0))) == {0, 1}
    assert set(np.unique(made.nearby(inner, jax.random.key(1), 0.0))) == {2}


def test_choices_without_an_order_have_no_neighbours():
    action = jnp.full((100, 2), 1)
    np.testing.assert_array_equal(multicategorical((3, 5)).nearby(action, jax.random.key(1), 1.0), action)


def test_rescaling_multiplies_the_logits_and_nothing_else():
    made = multicategorical(bins=3)
    network = MLP((3, 16, made.network.outputs + 1), jax.random.key(1))  # with one more output, as in ensembles
    wider = eqx.tree_at(lambda policy: policy.network, made, network)
    before, after = wider.network(OBSERVATION), wider.rescaled(jnp.float32(0.5)).network(OBSERVATION)
    np.testing.assert_allclose(after[:, :-1], 0.5 * before[:, :-1], rtol=1e-5)
    np.testing.assert_array_equal(after[:, -1], before[:, -1])


def test_encode_inverts_decode_and_finds_the_nearest_bin():
    made = multicategorical(bins=11, dimensions=1)
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
    assert multicategorical(bins=bins).action_dtype == dtype


@pytest.mark.parametrize("bins", [2, 11])
def test_a_density_integrates_to_one_and_has_the_entropy_of_its_steps(bins):
    """Of a uniform policy on [-1, 1]^2: density 1/4, entropy ln 2 per dimension, however many bins there are."""
    made = multicategorical(bins=bins, density=True)
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
    assert multicategorical(bins=11).entropy_goal == pytest.approx(0.3 * np.log(11))
    assert multicategorical(bins=11, density=True).entropy_goal == pytest.approx(0.3 * np.log(11) + np.log(2 / 11))


def test_discrete_actions_have_no_density():
    made = multicategorical((4, 4), density=True)
    assert made.entropy_goal == multicategorical((4, 4)).entropy_goal
    np.testing.assert_array_equal(
        made(OBSERVATION, 1.0).log_prob(jnp.zeros((4, 2), int)),
        multicategorical((4, 4))(OBSERVATION, 1.0).log_prob(jnp.zeros((4, 2), int)),
    )


# Autoregressive policies: a joint distribution that sums to one, and tasks that no product of policies can solve.


UNEVEN = Spec(observation_size=3, action_dimensions=3, categories=(2, 4, 3))
BOX = Spec(observation_size=3, action_dimensions=2, categories=None)


def autoregressive(spec: Spec, **values: Any) -> AutoregressivePolicy:
    config = configs.resolve("iq", "Task-v0", **{"hidden": (8,), "bins": 3, "policy": "autoregressive", **values})
    built = policies.build(config, spec, jax.random.key(0))  # pyright: ignore[reportArgumentType]
    assert isinstance(built, AutoregressivePolicy)
    return built


def all_actions(made: AutoregressivePolicy) -> np.ndarray:
    return np.array(list(itertools.product(*map(range, made.categories))))


def in_one_state(made: AutoregressivePolicy, count: int):
    """The distribution in one state, as often as asked for."""
    return made(jnp.tile(jnp.array([[0.3, -1.0, 2.0]]), (count, 1)), 0.5)


@pytest.mark.parametrize("softmax", ["plain", "scaled"])
@pytest.mark.parametrize("spec", [UNEVEN, BOX], ids=["MultiDiscrete", "Box"])
def test_all_joint_actions_together_have_probability_one_and_samples_their_shares(spec, softmax):
    made = autoregressive(spec, softmax=softmax)
    actions = all_actions(made)
    shares = np.exp(in_one_state(made, len(actions)).log_prob(jnp.asarray(actions)))
    assert shares.sum() == pytest.approx(1, abs=1e-5)
    drawn = np.asarray(in_one_state(made, 20_000).sample(jax.random.key(1)))
    counts = [(drawn == action).all(axis=1).mean() for action in actions]
    np.testing.assert_allclose(counts, shares, atol=0.02)
    exact = -np.sum(shares * np.log(shares))
    estimate = np.asarray(in_one_state(made, 20_000).entropy(jax.random.key(2))).sum(axis=1).mean()
    assert estimate == pytest.approx(exact, abs=0.02)


def test_a_factor_sees_the_choices_before_its_own_only():
    distribution = in_one_state(autoregressive(UNEVEN), 1)
    first = np.asarray(distribution.logits(jnp.array([[0, 1, 2]])))
    for dimension, other in ((0, [[1, 1, 2]]), (1, [[0, 2, 2]]), (2, [[0, 1, 0]])):
        changed = np.asarray(distribution.logits(jnp.array(other)))
        np.testing.assert_array_equal(changed[:, : dimension + 1], first[:, : dimension + 1])
        assert dimension == 2 or not np.array_equal(changed[:, dimension + 1 :], first[:, dimension + 1 :])


def test_the_deterministic_action_takes_the_most_likely_choice_after_those_before():
    made = autoregressive(UNEVEN)
    chosen = np.asarray(in_one_state(made, 1).deterministic())
    logits = np.asarray(in_one_state(made, 1).logits(jnp.asarray(chosen)))
    np.testing.assert_array_equal(chosen, logits.argmax(axis=-1))


def test_a_density_is_the_probability_of_a_bin_over_its_width():
    action = jnp.array([[2, 0]])
    mass, density = (
        in_one_state(autoregressive(BOX, log_policy=form), 1).log_prob(action) for form in ("probability", "density")
    )
    np.testing.assert_allclose(density - mass, -2 * np.log(2 / 3), rtol=1e-5)


def test_what_is_forbidden_is_never_chosen_and_the_rest_sums_to_one():
    made = autoregressive(UNEVEN)
    mask = np.array([[[True, False, False, False], [True, True, False, True], [True, True, True, True]]])
    actions = all_actions(made)
    allowing = in_one_state(made, len(actions)).allowing(jnp.asarray(mask))
    shares = np.exp(np.asarray(allowing.log_prob(jnp.asarray(actions))))
    allowed = np.array([all(mask[0, j, n] for j, n in enumerate(action)) for action in actions])
    assert (shares[~allowed] == 0).all()
    assert shares.sum() == pytest.approx(1, abs=1e-5)
    drawn = np.asarray(in_one_state(made, 500).allowing(jnp.asarray(mask)).sample(jax.random.key(0)))
    assert set(drawn[:, 0]) == {0}
    assert 2 not in drawn[:, 1]
    assert np.isfinite(allowing.entropy(jax.random.key(0))).all()


def test_ensembles_need_a_policy_that_is_a_product():
    with pytest.raises(InputError, match="members must be 1 with policy 'autoregressive', whose"):
        configs.resolve("iq", "Task-v0", policy="autoregressive", members=2)


class Differ(gym.Env):
    """Pays 1 if two choices differ, that is if the signs of two numbers do.

    So Q(0, 1) + Q(1, 0) - Q(0, 0) - Q(1, 1) is 2. With a product of policies ln pi is a sum over the dimensions, and
    that of an implicit Q-value is 0, whatever it has learnt.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, kind: str) -> None:
        box = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = box if kind == "Box" else gym.spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any):
        first, second = np.asarray(action) > 0
        return np.ones(1, np.float32), float(first != second), True, False, {}


def trained(kind: str, chosen: str, **values: Any) -> implicitq.Agent:
    settings = {"hidden": (16,), "bins": 2, "min_replay": 100, "batch_size": 64, "learning_rate": 3e-3}
    agent = implicitq.make("iq", lambda: Differ(kind), policy=chosen, eval_every=10**6, **{**settings, **values})
    return agent.learn(1_500)


def test_an_autoregressive_policy_finds_an_optimum_that_no_product_holds():
    """All four joint actions: rewards 0, 1, 1, 0, so the soft value is T ln(2 + 2 exp(1 / T))."""
    agent = trained("Box", "autoregressive", temperature=0.2)
    assert agent.value(np.ones(1)) == pytest.approx(0.2 * np.log(2 + 2 * np.exp(5)), abs=0.1)
    actions = agent.predict(np.ones((400, 1)))[0]
    differ = np.mean((actions[:, 0] > 0) != (actions[:, 1] > 0))
    assert differ == pytest.approx(1 / (1 + np.exp(-5)), abs=0.05)
    assert agent.evaluate(3).mean == 1.0
    agent.close()


@pytest.mark.parametrize(("chosen", "interaction"), [("autoregressive", 2.0), ("multicategorical", 0.0)])
def test_only_it_can_hold_what_depends_on_both_choices(chosen, interaction):
    agent = trained("MultiDiscrete", chosen, temperature=0.2)
    q = agent.q_value(np.ones((4, 1)), np.array([[0, 1], [1, 0], [0, 0], [1, 1]]))
    assert q[0] + q[1] - q[2] - q[3] == pytest.approx(interaction, abs=0.4 if interaction else 1e-4)
    agent.close()


def test_a_learnt_temperature_holds_the_entropy_that_is_estimated():
    agent = trained("MultiDiscrete", "autoregressive", temperature="auto", entropy_target=0.5, learning_rate=1e-2)
    made = np.array(list(itertools.product(range(2), repeat=2)))
    shares = np.exp(agent.log_prob(np.ones((4, 1)), made))
    assert -np.sum(shares * np.log(shares)) / 2 == pytest.approx(0.5, abs=0.05)
    agent.close()


# The normal policies: densities against SciPy, and no infinities anywhere a replayed action can be.


SPEC = Spec(observation_size=3, action_dimensions=2, categories=None)
MEAN, SCALE = jnp.array([[0.3, -1.2], [0.0, 4.0]]), jnp.array([[0.5, 0.01], [2.0, 0.3]])
ACTION = jnp.array([[1.0, -1.0], [-1.7, 0.2]])


@pytest.mark.parametrize("compiled", [False, True])
def test_the_log_density_is_that_of_scipy(compiled):
    log_prob = jax.jit(Gaussian.log_prob) if compiled else Gaussian.log_prob
    expected = stats.norm.logpdf(np.asarray(ACTION, float), np.asarray(MEAN, float), np.asarray(SCALE, float)).sum(1)
    np.testing.assert_allclose(log_prob(Gaussian(MEAN, SCALE), ACTION), expected, rtol=1e-5)


INSIDE, WIDTH = jnp.array([[0.3, -1.0], [0.0, 0.97]]), jnp.array([[0.5, 0.05], [2.0, 0.3]])
BETWEEN = np.array([[1.0, -1.0], [-0.7, 0.2]], np.float32)


def truncated(mean=INSIDE, scale=WIDTH):
    """The same in SciPy."""
    mean, scale = np.asarray(mean, float), np.asarray(scale, float)
    return stats.truncnorm((-1 - mean) / scale, (1 - mean) / scale, mean, scale)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_truncated_density_is_that_of_scipy(compiled):
    log_prob = jax.jit(TruncatedGaussian.log_prob) if compiled else TruncatedGaussian.log_prob
    expected = truncated().logpdf(BETWEEN.astype(float)).sum(1)
    np.testing.assert_allclose(log_prob(TruncatedGaussian(INSIDE, WIDTH), BETWEEN), expected, rtol=1e-4)


def test_entropy_and_expected_action_of_the_truncated_normal_are_exact():
    made = TruncatedGaussian(INSIDE, WIDTH)
    np.testing.assert_allclose(made.entropy(jax.random.key(0)), truncated().entropy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made.deterministic(), truncated().mean(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("mean", "scale"), [(-1.0, 0.05), (0.2, 0.4), (1.0, 2.0)])
def test_samples_stay_within_the_bounds_and_are_those_of_the_density(mean, scale):
    made = TruncatedGaussian(jnp.full((20_000, 1), mean), jnp.full((20_000, 1), scale))
    drawn = np.asarray(made.sample(jax.random.key(0)))[:, 0]
    assert np.abs(drawn).max() <= 1
    assert stats.kstest(drawn, truncated(mean, scale).cdf).pvalue > 1e-4


def test_the_geometric_mean_of_truncated_normals_is_one_of_them():
    grid = np.linspace(-1, 1, 20_001)
    each = [(-1.0, 0.5), (0.3, 0.1), (0.9, 1.5)]
    made = [TruncatedGaussian(jnp.full((1, 1), mean), jnp.full((1, 1), scale)) for mean, scale in each]
    log_product = np.mean([truncated(*one).logpdf(grid) for one in each], axis=0)
    z = np.trapezoid(np.exp(log_product), grid)
    common, log_z = made[0].pool(made[1:])
    assert float(log_z[0]) == pytest.approx(np.log(z), abs=1e-4)
    found = common.log_prob(jnp.asarray(grid[:, None], jnp.float32))
    np.testing.assert_allclose(np.exp(found), np.exp(log_product) / z, atol=1e-3)


def test_actions_are_stored_as_they_are():
    policy = GaussianPolicy(SPEC, (), jax.random.key(0))
    assert policy.action_dtype == np.float32
    np.testing.assert_array_equal(policy.decode(BETWEEN), BETWEEN)
    np.testing.assert_array_equal(policy.encode(BETWEEN), BETWEEN)


@pytest.mark.parametrize("size", [0.0, 1.0, 1e3, 1e6])
def test_loss_and_gradient_are_finite_at_the_bounds_and_for_any_network_output(size):
    algorithm = iq.build(configs.resolve("miq-gaussian", "some-task", hidden=(8,)), SPEC)
    state = algorithm.init(jax.random.key(0))
    rows = np.full((4, 3), size, np.float32)
    action = np.array([[1, -1], [-1, 1], [0, 1], [-1, 1 - 1e-7]], np.float32)
    batch = Transition(rows, action, np.ones(4, np.float32), np.ones(4, np.float32), -rows)
    target = Targets(*state.online[:2])
    error = lambda online: algorithm.loss(online, target, batch, algorithm.config, jax.random.key(0)).error  # noqa: E731
    value, gradient = jax.jit(jax.value_and_grad(error))(state.online)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(("mean", "scale"), [(0.0, 0.5), (1.0, 0.3), (-0.5, 1.0)])
def test_the_squashed_density_integrates_to_one_and_matches_its_samples(mean, scale):
    policy = TanhGaussian(Gaussian(jnp.full((1, 1), mean), jnp.full((1, 1), scale)))
    grid = np.linspace(-1 + 1e-5, 1 - 1e-5, 20_001, dtype=np.float32)[:, None]
    repeated = TanhGaussian(Gaussian(jnp.full(grid.shape, mean), jnp.full(grid.shape, scale)))
    assert np.trapezoid(np.exp(repeated.log_prob(grid)), grid[:, 0]) == pytest.approx(1, abs=1e-3)
    action, log_pi = policy.sample_and_log_prob(jax.random.key(0))
    assert log_pi[0] == pytest.approx(float(policy.log_prob(action)[0]), rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("mean", [0.0, 20.0, -300.0])
def test_the_squashed_density_is_finite_with_its_gradient_where_tanh_is_flat(mean):
    def total(centre):
        policy = TanhGaussian(Gaussian(jnp.full((8, 2), centre), jnp.ones((8, 2))))
        return jnp.sum(policy.sample_and_log_prob(jax.random.key(0))[1] + policy.log_prob(jnp.ones((8, 2))))

    value, slope = jax.value_and_grad(total)(mean)
    assert np.isfinite(value)
    assert np.isfinite(slope)


def test_scales_stay_within_their_bounds():
    far = jnp.array([[1e4, -1e4, 1e4], [0.0, 0.0, 0.0]])
    bounded = GaussianPolicy(SPEC, (), jax.random.key(0))(far, 0.1)
    assert float(bounded.scale.min()) >= 0.05
    assert float(bounded.scale.max()) <= 2.0
    assert float(jnp.abs(bounded.mean).max()) <= 1.0
    assert float(TanhGaussianPolicy(SPEC, (), jax.random.key(0))(far).normal.scale.min()) >= 1e-3


# Flows: a density that integrates to one, its own inverse, and a task that no product of policies solves.


KEY = jax.random.key(0)


def policy(dimensions: int) -> FlowPolicy:
    """With random couplings, which an untrained one has not."""
    config = configs.resolve("iq", "Task-v0", hidden=(8,), policy="flow")
    made: Any = policies.build(config, Spec(3, dimensions, None), KEY)  # pyright: ignore[reportArgumentType]
    leaves, structure = jax.tree.flatten(made)
    moved = [leaf + 0.15 * jax.random.normal(jax.random.key(n), leaf.shape) for n, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, moved)


def flow_in_one_state(made: FlowPolicy, count: int):
    """The distribution in one state, as often as asked for."""
    return made(jnp.tile(jnp.array([[0.3, -1.0, 2.0]]), (count, 1)), 0.5)


# Compiled as a whole: the operations of a flow one by one take several times as long.
flow_log_prob = jax.jit(Flow.log_prob)
flow_sample = jax.jit(Flow.sample)
flow_entropy = jax.jit(Flow.entropy)
flow_deterministic = jax.jit(Flow.deterministic)


def test_a_spline_rises_from_corner_to_corner_and_goes_back():
    x = jnp.linspace(-1, 1, 2_001)[:, None]
    spline = Spline.of(jnp.tile(jax.random.normal(KEY, (1, 1, 16)), (2_001, 1, 1)))
    y, log_slope = spline.forward(x)
    assert (float(y[0, 0]), float(y[-1, 0])) == pytest.approx((-1, 1), abs=1e-5)
    assert (np.diff(np.asarray(y)[:, 0]) > 0).all()
    np.testing.assert_allclose(spline.inverse(y), x, atol=1e-3)
    slopes = np.gradient(np.asarray(y, float)[:, 0], np.asarray(x, float)[:, 0])
    np.testing.assert_allclose(np.exp(log_slope[5:-5, 0]), slopes[5:-5], rtol=0.1, atol=0.05)


def test_parameters_of_zero_are_the_identity():
    x = jnp.linspace(-1, 1, 11)[:, None]
    y, log_slope = Spline.of(jnp.zeros((11, 1, 16))).forward(x)
    np.testing.assert_allclose(y, x, atol=1e-6)
    np.testing.assert_allclose(log_slope, 0, atol=1e-5)


@pytest.mark.parametrize("scale", [5.0, 50.0])
def test_a_spline_that_differs_by_many_nats_is_still_a_density_and_goes_back(scale):
    x = jnp.linspace(-1, 1, 20_001)[:, None]
    spline = Spline.of(jnp.tile(scale * jax.random.normal(KEY, (1, 1, 16)), (20_001, 1, 1)))
    _, log_slope = spline.forward(x)
    assert float(jnp.ptp(log_slope)) > 4 * scale
    density = np.exp(np.asarray(log_slope, float)[:, 0])
    assert np.trapezoid(density, np.asarray(x, float)[:, 0]) == pytest.approx(2, abs=0.01)
    back, _ = spline.forward(spline.inverse(x))
    np.testing.assert_allclose(back, x, atol=1e-4)


def test_what_is_all_but_impossible_is_still_learnt_from():
    """Where a piece has no share to speak of, ln pi answers to it as elsewhere: no action is lost for good."""
    x = (jnp.arange(16) + 0.5)[:, None] / 8 - 1  # the middle of every piece

    def log_slopes(shares: jax.Array) -> jax.Array:
        return Spline.of(jnp.tile(shares, (16, 1, 1))).forward(x)[1][:, 0]

    for peak in (0.0, 10.0, 100.0):
        own = jnp.diagonal(jax.jacobian(log_slopes)(peak * jax.nn.one_hot(3, 16)))  # d ln pi in a piece by its share
        assert (np.delete(np.asarray(own), [2, 3, 4]) > 0.8).all()


@pytest.mark.parametrize("dimensions", [1, 2])
def test_the_density_integrates_to_one_and_is_that_of_its_samples(dimensions):
    made = policy(dimensions)
    cells = 400 if dimensions == 1 else 200
    centres = (np.arange(cells) + 0.5) / cells * 2 - 1
    grid = np.stack(np.meshgrid(*[centres] * dimensions, indexing="ij"), axis=-1).reshape(-1, dimensions)
    density = np.exp(flow_log_prob(flow_in_one_state(made, len(grid)), jnp.asarray(grid, jnp.float32)))
    volume = (2 / cells) ** dimensions
    assert density.sum() * volume == pytest.approx(1, abs=0.01)
    drawn = np.asarray(flow_sample(flow_in_one_state(made, 20_000), jax.random.key(1)))
    assert np.abs(drawn).max() <= 1
    # The share of samples in each of two halves of every dimension, against the integral of the density there.
    for quarter in np.ndindex(*[2] * dimensions):
        inside = lambda points, q=quarter: ((points > 0) == np.array(q, bool)).all(axis=1)  # noqa: E731
        assert inside(drawn).mean() == pytest.approx(density[inside(grid)].sum() * volume, abs=0.02)
    exact = -np.sum(density * np.log(density)) * volume / dimensions
    entropy = flow_entropy(flow_in_one_state(made, 20_000), jax.random.key(2))
    assert float(entropy.mean()) == pytest.approx(exact, abs=0.03)


def test_dimensions_depend_on_each_other():
    made = policy(2)
    drawn = np.asarray(flow_sample(flow_in_one_state(made, 5_000), KEY))
    low, high = (drawn[side, 1].mean() for side in (drawn[:, 0] < -0.5, drawn[:, 0] > 0.5))
    assert abs(high - low) > 0.05


def test_everything_is_finite_with_its_gradient_up_to_the_bounds():
    made = policy(3)
    corners = jnp.array([[-1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [-1.0, -1.0, -1.0], [1 - 1e-7, 0.3, -0.2]])

    @jax.jit
    @jax.value_and_grad
    def total(policy: FlowPolicy, size: float) -> jax.Array:
        return jnp.sum(policy(jnp.full((4, 3), size), 0.1).log_prob(corners))

    for size in (0.0, 1.0, 1e4):
        value, gradient = total(made, size)
        assert np.isfinite(value)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_the_deterministic_action_is_among_the_most_likely():
    made = policy(2)
    distribution = flow_in_one_state(made, 2_000)
    chosen = flow_deterministic(distribution)
    others = np.asarray(flow_log_prob(distribution, flow_sample(distribution, KEY)))
    assert float(flow_log_prob(distribution, chosen)[0]) > np.percentile(others, 80)
    assert len(np.unique(np.asarray(chosen), axis=0)) == 1


def test_a_flow_has_no_scaled_form_and_needs_a_box():
    with pytest.raises(InputError, match="softmax must be 'plain' with policy 'flow', got 'scaled'"):
        configs.resolve("iq", "Task-v0", policy="flow", softmax="scaled")
    with pytest.raises(InputError, match="it accepts Box"):
        implicitq.make("iq", "CartPole-v1", policy="flow")


def test_a_flow_finds_an_optimum_that_no_product_holds():
    settings = {"hidden": (16,), "min_replay": 200, "batch_size": 64, "learning_rate": 3e-3, "temperature": 0.2}
    settings |= {"actor_average": 0.01}  # the newest weights alone can play in a wrong quarter
    agent = implicitq.make("iq", lambda: Differ("Box"), policy="flow", eval_every=10**6, **settings).learn(2_500)
    # Four quarters of area 1 with rewards 0, 1, 1, 0: the soft value is T ln(2 + 2 exp(1 / T)).
    assert agent.value(np.ones(1)) == pytest.approx(0.2 * np.log(2 + 2 * np.exp(5)), abs=0.15)
    actions = agent.predict(np.ones((400, 1)))[0]
    assert np.mean((actions[:, 0] > 0) != (actions[:, 1] > 0)) > 0.9
    assert agent.evaluate(3).mean == 1.0
    agent.close()
