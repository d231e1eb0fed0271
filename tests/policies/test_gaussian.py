"""The normal policies: densities against SciPy, and no infinities anywhere a replayed action can be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from implicitq import configs
from implicitq.algorithms import iq
from implicitq.algorithms.implicit import Targets
from implicitq.policies.gaussian import Gaussian, GaussianPolicy, TruncatedGaussian
from implicitq.policies.tanh_gaussian import TanhGaussian, TanhGaussianPolicy
from implicitq.types import Spec, Transition

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
