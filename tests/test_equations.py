"""The equations against numbers computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicitq import equations

with_and_without_jit = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])


@with_and_without_jit
def test_implicit_q_is_temperature_times_log_policy_plus_value(transform):
    q = transform(equations.implicit_q)(jnp.log(jnp.array([0.5, 0.25])), jnp.array([1.0, -2.0]), 2.0)
    np.testing.assert_allclose(q, [1 - 2 * 0.6931472, -2 - 4 * 0.6931472], rtol=1e-6)


@with_and_without_jit
def test_the_munchausen_bonus_scales_the_log_policy_by_alpha_and_temperature(transform):
    bonus = transform(lambda log_pi: equations.munchausen_bonus(log_pi, 0.9, 0.1))(jnp.array([-1.0, -50.0]))
    np.testing.assert_allclose(bonus, [-0.09, -4.5], rtol=1e-6)


@with_and_without_jit
def test_the_munchausen_clip_bounds_the_scaled_log_policy_from_below(transform):
    bonus = transform(lambda log_pi: equations.munchausen_bonus(log_pi, 0.9, 0.1, clip=1.0))(jnp.array([-1.0, -50.0]))
    np.testing.assert_allclose(bonus, [-0.09, -0.9], rtol=1e-6)


@with_and_without_jit
def test_the_target_does_not_bootstrap_where_the_discount_is_zero(transform):
    goal = transform(equations.target)(
        jnp.array([1.0, 1.0]), jnp.array([-0.5, -0.5]), jnp.array([0.9, 0.0]), jnp.array([10.0, 10.0])
    )
    np.testing.assert_allclose(goal, [1 - 0.5 + 9, 1 - 0.5], rtol=1e-6)


def test_the_loss_is_the_mean_of_squares_without_a_half():
    assert equations.squared_loss(jnp.array([1.0, 2.0]), jnp.array([3.0, 2.0])) == 2.0


def test_polyak_moves_the_target_by_the_rate_towards_the_online_parameters():
    moved = equations.polyak({"w": jnp.array([0.0, 10.0])}, {"w": jnp.array([1.0, 20.0])}, 0.05)
    np.testing.assert_allclose(moved["w"], [0.05, 10.5], rtol=1e-6)
