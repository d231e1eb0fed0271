"""Autoregressive policies: a joint distribution that sums to one, and tasks that no product of policies can solve."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicitq
from implicitq import configs, policies
from implicitq.policies.autoregressive import AutoregressivePolicy
from implicitq.types import InputError, Spec

UNEVEN = Spec(observation_size=3, action_dimensions=3, categories=(2, 4, 3))
BOX = Spec(observation_size=3, action_dimensions=2, categories=None)


def policy(spec: Spec, **values: Any) -> AutoregressivePolicy:
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
    made = policy(spec, softmax=softmax)
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
    distribution = in_one_state(policy(UNEVEN), 1)
    first = np.asarray(distribution.logits(jnp.array([[0, 1, 2]])))
    for dimension, other in ((0, [[1, 1, 2]]), (1, [[0, 2, 2]]), (2, [[0, 1, 0]])):
        changed = np.asarray(distribution.logits(jnp.array(other)))
        np.testing.assert_array_equal(changed[:, : dimension + 1], first[:, : dimension + 1])
        assert dimension == 2 or not np.array_equal(changed[:, dimension + 1 :], first[:, dimension + 1 :])


def test_the_deterministic_action_takes_the_most_likely_choice_after_those_before():
    made = policy(UNEVEN)
    chosen = np.asarray(in_one_state(made, 1).deterministic())
    logits = np.asarray(in_one_state(made, 1).logits(jnp.asarray(chosen)))
    np.testing.assert_array_equal(chosen, logits.argmax(axis=-1))


def test_a_density_is_the_probability_of_a_bin_over_its_width():
    action = jnp.array([[2, 0]])
    mass, density = (
        in_one_state(policy(BOX, log_policy=form), 1).log_prob(action) for form in ("probability", "density")
    )
    np.testing.assert_allclose(density - mass, -2 * np.log(2 / 3), rtol=1e-5)


def test_what_is_forbidden_is_never_chosen_and_the_rest_sums_to_one():
    made = policy(UNEVEN)
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


def test_it_finds_an_optimum_that_no_product_of_policies_holds():
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
