"""Normal policies and flows: densities against SciPy and integrals, no infinities, a task that no product solves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from test_autoregressive import Differ

import implicitq
from implicitq import configs, policies
from implicitq.algorithms import iq
from implicitq.algorithms.implicit import Targets
from implicitq.policies.flow import FlowPolicy, Spline
from implicitq.policies.gaussian import Gaussian, GaussianPolicy, TruncatedGaussian
from implicitq.policies.tanh_gaussian import TanhGaussian, TanhGaussianPolicy
from implicitq.types import InputError, Spec, Transition

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
    value, gradient = jax.value_and_grad(
        lambda online: algorithm.loss(online, target, batch, algorithm.config, jax.random.key(0)).error
    )(state.online)
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


def in_one_state(made: FlowPolicy, count: int):
    """The distribution in one state, as often as asked for."""
    return made(jnp.tile(jnp.array([[0.3, -1.0, 2.0]]), (count, 1)), 0.5)


def test_a_spline_rises_from_corner_to_corner_and_goes_back():
    x = jnp.linspace(-1, 1, 2_001)[:, None]
    spline = Spline.of(jnp.tile(jax.random.normal(KEY, (1, 1, 25)), (2_001, 1, 1)))
    y, log_slope = spline.forward(x)
    assert (float(y[0, 0]), float(y[-1, 0])) == pytest.approx((-1, 1), abs=1e-5)
    assert (np.diff(np.asarray(y)[:, 0]) > 0).all()
    np.testing.assert_allclose(spline.inverse(y), x, atol=1e-3)
    slopes = np.gradient(np.asarray(y, float)[:, 0], np.asarray(x, float)[:, 0])
    np.testing.assert_allclose(np.exp(log_slope[5:-5, 0]), slopes[5:-5], rtol=0.1, atol=0.05)


def test_parameters_of_zero_are_the_identity():
    x = jnp.linspace(-1, 1, 11)[:, None]
    y, log_slope = Spline.of(jnp.zeros((11, 1, 25))).forward(x)
    np.testing.assert_allclose(y, x, atol=1e-6)
    np.testing.assert_allclose(log_slope, 0, atol=1e-5)


@pytest.mark.parametrize("dimensions", [1, 2])
def test_the_density_integrates_to_one_and_is_that_of_its_samples(dimensions):
    made = policy(dimensions)
    cells = 400 if dimensions == 1 else 200
    centres = (np.arange(cells) + 0.5) / cells * 2 - 1
    grid = np.stack(np.meshgrid(*[centres] * dimensions, indexing="ij"), axis=-1).reshape(-1, dimensions)
    density = np.exp(in_one_state(made, len(grid)).log_prob(jnp.asarray(grid, jnp.float32)))
    volume = (2 / cells) ** dimensions
    assert density.sum() * volume == pytest.approx(1, abs=0.01)
    drawn = np.asarray(in_one_state(made, 20_000).sample(jax.random.key(1)))
    assert np.abs(drawn).max() <= 1
    # The share of samples in each of two halves of every dimension, against the integral of the density there.
    for quarter in np.ndindex(*[2] * dimensions):
        inside = lambda points, q=quarter: ((points > 0) == np.array(q, bool)).all(axis=1)  # noqa: E731
        assert inside(drawn).mean() == pytest.approx(density[inside(grid)].sum() * volume, abs=0.02)
    exact = -np.sum(density * np.log(density)) * volume / dimensions
    assert float(in_one_state(made, 20_000).entropy(jax.random.key(2)).mean()) == pytest.approx(exact, abs=0.03)


def test_dimensions_depend_on_each_other():
    made = policy(2)
    drawn = np.asarray(in_one_state(made, 5_000).sample(KEY))
    low, high = (drawn[side, 1].mean() for side in (drawn[:, 0] < -0.5, drawn[:, 0] > 0.5))
    assert abs(high - low) > 0.05


def test_everything_is_finite_with_its_gradient_up_to_the_bounds():
    made = policy(3)
    corners = jnp.array([[-1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [-1.0, -1.0, -1.0], [1 - 1e-7, 0.3, -0.2]])

    def total(policy: FlowPolicy, size: float) -> jax.Array:
        return jnp.sum(policy(jnp.full((4, 3), size), 0.1).log_prob(corners))

    for size in (0.0, 1.0, 1e4):
        value, gradient = jax.value_and_grad(total)(made, size)
        assert np.isfinite(value)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_the_deterministic_action_is_among_the_most_likely():
    made = policy(2)
    distribution = in_one_state(made, 2_000)
    best = distribution.log_prob(distribution.deterministic())[0]
    others = np.asarray(distribution.log_prob(distribution.sample(KEY)))
    assert float(best) > np.percentile(others, 80)
    assert len(np.unique(np.asarray(distribution.deterministic()), axis=0)) == 1


def test_a_flow_has_no_scaled_form_and_needs_a_box():
    with pytest.raises(InputError, match="softmax must be 'plain' with policy 'flow', got 'scaled'"):
        configs.resolve("iq", "Task-v0", policy="flow", softmax="scaled")
    with pytest.raises(InputError, match="it accepts Box"):
        implicitq.make("iq", "CartPole-v1", policy="flow")


def test_it_finds_an_optimum_that_no_product_of_policies_holds():
    settings = {"hidden": (16,), "min_replay": 200, "batch_size": 64, "learning_rate": 3e-3, "temperature": 0.2}
    agent = implicitq.make("iq", lambda: Differ("Box"), policy="flow", eval_every=10**6, **settings).learn(2_500)
    # Four quarters of area 1 with rewards 0, 1, 1, 0: the soft value is T ln(2 + 2 exp(1 / T)).
    assert agent.value(np.ones(1)) == pytest.approx(0.2 * np.log(2 + 2 * np.exp(5)), abs=0.15)
    actions = agent.predict(np.ones((400, 1)))[0]
    assert np.mean((actions[:, 0] > 0) != (actions[:, 1] > 0)) > 0.9
    assert agent.evaluate(3).mean == 1.0
    agent.close()
