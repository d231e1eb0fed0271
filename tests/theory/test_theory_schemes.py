import time

import numpy as np
import pytest
from hypothesis import given
from random_mdps import alphas, mdps, reproducible

from implicitq.theory import (
    Adversary,
    FiniteMDP,
    GaussianNoise,
    GivenErrors,
    SampledTransitions,
    advantage_learning,
    iq_dp,
    md_vi,
    optimum,
    q_learning,
    soft_value_iteration,
    speedy_q_learning,
    value_iteration,
)
from implicitq.theory import errors as errors_module
from implicitq.theory.errors import Step
from implicitq.theory.library import chain, garnet


def two_armed(discount=0.5):
    """One state, two actions that pay 1 and 0."""
    return FiniteMDP(np.ones((1, 2, 1)), np.array([[1.0, 0.0]]), discount)


def test_iq_dp_matches_hand_computed_numbers():
    trace = iq_dp(two_armed(), alpha=0.5, temperature=1.0, iterations=2)
    # step 1: the right-hand side is r + 0.5 ln(1/2) = (1, 0) - 0.5 ln 2
    first = np.log(np.e + 1) - 0.5 * np.log(2)
    probability = np.e / (np.e + 1)
    np.testing.assert_allclose(trace.values[:, 0], [0.0, first, trace.values[2, 0]])
    np.testing.assert_allclose(trace.policies[1, 0], [probability, 1 - probability])
    # step 2: r + 0.5 ln pi + 0.5 V
    right = np.array([1 + 0.5 * np.log(probability), 0.5 * np.log(1 - probability)]) + 0.5 * first
    assert trace.values[2, 0] == pytest.approx(np.log(np.exp(right).sum()))
    np.testing.assert_allclose(trace.policies[2, 0], np.exp(right) / np.exp(right).sum())


def test_records_start_at_zero_and_uniform_and_have_one_row_more_than_steps():
    mdp = chain(4)
    runs = [
        iq_dp(mdp, alpha=0.9, temperature=0.1, iterations=3),
        md_vi(mdp, kl=0.1, entropy=0.2, iterations=3),
        soft_value_iteration(mdp, temperature=0.1, iterations=3),
        value_iteration(mdp, iterations=3),
        advantage_learning(mdp, alpha=0.5, iterations=3),
        speedy_q_learning(mdp, iterations=3),
        q_learning(mdp, iterations=3),
    ]
    for trace in runs:
        assert trace.values.shape == (4, 4)
        assert trace.policies.shape == trace.q_values.shape == (4, 4, 2)
        assert (trace.values[0] == 0).all()
        np.testing.assert_allclose(trace.policies[0], 0.5)
        np.testing.assert_allclose(trace.policies.sum(-1), 1.0)
        np.testing.assert_array_equal(trace.iterations, [0, 1, 2, 3])
    assert len(iq_dp(mdp, alpha=0.9, temperature=0.1, iterations=0).values) == 1


def test_what_is_kept_is_the_same_run():
    mdp = chain(4)
    settings = {"alpha": 0.9, "temperature": 0.1, "iterations": 7, "errors": GaussianNoise(0.1)}
    everything = iq_dp(mdp, **settings)
    for keep, rows in {"last": [7], 3: [0, 3, 6, 7], (1, 5): [1, 5]}.items():
        trace = iq_dp(mdp, keep=keep, **settings)
        np.testing.assert_array_equal(trace.iterations, rows)
        np.testing.assert_array_equal(trace.values, everything.values[rows])
        np.testing.assert_array_equal(trace.policies, everything.policies[rows])


@pytest.mark.parametrize("errors", [GaussianNoise(0.2), SampledTransitions(1), SampledTransitions(4), Adversary(0.1)])
def test_a_seed_gives_the_same_run_alone_and_among_others(errors):
    mdp = garnet(12, 3, 4, seed=1)
    settings = {"alpha": 0.8, "temperature": 0.1, "iterations": 20, "errors": errors}
    together = iq_dp(mdp, seeds=[5, 2, 9], **settings)
    again = iq_dp(mdp, seeds=[5, 2, 9], **settings)
    alone = iq_dp(mdp, seeds=[2], **settings)
    assert together.values.shape == (21, 3, 12)
    assert together.policies.shape == together.errors.shape == (21, 3, 12, 3)
    np.testing.assert_array_equal(together.values, again.values)
    np.testing.assert_allclose(together.values[:, 1], alone.values[:, 0], atol=1e-12)
    if not isinstance(errors, Adversary):
        assert np.abs(together.values[-1, 0] - together.values[-1, 1]).max() > 1e-3


def test_recorded_errors_are_what_the_update_misses():
    mdp, alpha, temperature = garnet(6, 3, 2, seed=4), 0.7, 0.3
    for errors in (GaussianNoise(0.2), SampledTransitions(2), Adversary(0.1)):
        trace = iq_dp(mdp, alpha=alpha, temperature=temperature, iterations=8, errors=errors)
        for k in range(8):
            right = mdp.backup(trace.values[k]) + alpha * temperature * trace.log_policies[k]
            np.testing.assert_allclose(trace.q_values[k + 1] - right, trace.errors[k + 1], atol=1e-13)
            implicit = temperature * trace.log_policies[k + 1] + trace.values[k + 1][:, None]
            np.testing.assert_allclose(implicit, trace.q_values[k + 1], atol=1e-13)
        assert (trace.errors[0] == 0).all()


def test_given_errors_are_applied_in_order():
    mdp = chain(4)
    errors = np.random.default_rng(0).normal(size=(5, 4, 2))
    trace = iq_dp(mdp, alpha=0.5, temperature=0.1, iterations=5, errors=GivenErrors(errors))
    np.testing.assert_array_equal(trace.errors[1:], errors)


@pytest.mark.parametrize("narrow", [16, 1])  # by counting, by searching
def test_sampled_transitions_are_unbiased_and_lie_in_the_support(narrow, monkeypatch):
    monkeypatch.setattr(errors_module, "NARROW", narrow)
    P = garnet(5, 2, 3, seed=0).P.copy()
    P[1, 0] = np.eye(5)[4]  # rows of different lengths
    mdp = FiniteMDP(P, np.zeros((5, 2)), 0.9)
    value = np.repeat(np.random.default_rng(1).normal(size=(5, 1)), 4000, axis=1)
    source = SampledTransitions(1).prepare(mdp, 1)
    step = Step(mdp, 1, [np.random.default_rng(seed) for seed in range(4000)], [value])
    errors = source.draw(step)[0]
    spread = mdp.discount * np.abs(value).max() / np.sqrt(4000)
    assert np.abs(errors.mean(-1)).max() < 5 * spread
    following = source.next_states(step)
    for row in range(10):
        support = np.flatnonzero(mdp.rows[row])
        assert set(np.unique(following[row])) <= set(support)
        for state in support:
            assert np.mean(following[row] == state) == pytest.approx(mdp.rows[row, state], abs=0.04)


def test_both_ways_of_sampling_draw_the_same_states(monkeypatch):
    mdp = garnet(8, 2, 4, seed=0)
    settings = {"iterations": 30, "errors": SampledTransitions(2), "seeds": 3}
    counted = value_iteration(mdp, **settings).values
    monkeypatch.setattr(errors_module, "NARROW", 1)
    np.testing.assert_allclose(value_iteration(mdp, **settings).values, counted, atol=1e-12)


def test_sampling_a_deterministic_table_makes_no_error():
    mdp = chain(5, slip=0.0)
    trace = value_iteration(mdp, iterations=10, errors=SampledTransitions(2))
    np.testing.assert_allclose(trace.errors, 0.0, atol=1e-15)


@given(mdps())
@reproducible
def test_iq_dp_at_alpha_0_and_vanishing_temperature_is_value_iteration(mdp):
    plain = value_iteration(mdp, iterations=30)
    soft = iq_dp(mdp, alpha=0.0, temperature=1e-6, iterations=30)
    # each step raises a value by at most temperature ln A
    assert np.abs(soft.values - plain.values).max() <= 1e-6 * np.log(mdp.actions) / (1 - mdp.discount) + 1e-11


@given(mdps(), alphas)
@reproducible
def test_iq_dp_at_vanishing_temperature_is_advantage_learning(mdp, alpha):
    limit = advantage_learning(mdp, alpha=alpha, iterations=20)
    soft = iq_dp(mdp, alpha=alpha, temperature=1e-6, iterations=20)
    # IQ-DP's Q contains alpha (Q - V) where advantage learning has alpha (Q - max Q)
    size = max(1.0, mdp.reward_bound) / (1 - mdp.discount)
    assert (
        np.abs(soft.values - limit.values).max() <= 1e-6 * 20 * np.log(mdp.actions) / (1 - mdp.discount) + 1e-11 * size
    )
    assert np.abs(soft.q_values[1:] - limit.q_values[1:]).max() <= 1e-4 / (1 - mdp.discount)


def test_the_distance_to_the_limits_shrinks_in_proportion_to_the_temperature():
    mdp = garnet(10, 3, 3, seed=0)
    for alpha in (0.0, 0.8):
        limit = advantage_learning(mdp, alpha=alpha, iterations=50).values
        distance = [
            np.abs(iq_dp(mdp, alpha=alpha, temperature=temperature, iterations=50).values - limit).max()
            for temperature in (1e-2, 1e-4, 1e-6)
        ]
        assert distance[0] > 0
        assert distance[1] <= distance[0] / 30
        assert distance[2] <= distance[1] / 30


def test_advantage_learning_at_alpha_0_is_value_iteration():
    mdp = garnet(10, 3, 3, seed=0)
    np.testing.assert_allclose(
        advantage_learning(mdp, alpha=0.0, iterations=20).values, value_iteration(mdp, iterations=20).values
    )


def test_iq_dp_at_alpha_0_performs_the_update_of_soft_actor_critic():
    # SAC's soft policy evaluation and improvement, by loops: Q <- r + gamma E[<pi, Q - t ln pi>], pi <-
    # softmax(Q / t)
    mdp, temperature = garnet(4, 3, 2, seed=7), 0.25
    q = np.full((4, 3), -temperature * np.log(3))  # makes V_0 = 0 under the uniform policy
    policy = np.full((4, 3), 1 / 3)
    trace = iq_dp(mdp, alpha=0.0, temperature=temperature, iterations=12)
    for k in range(12):
        target = np.zeros((4, 3))
        for s in range(4):
            for a in range(3):
                soft = [
                    sum(policy[t, b] * (q[t, b] - temperature * np.log(policy[t, b])) for b in range(3))
                    for t in range(4)
                ]
                target[s, a] = mdp.r[s, a] + mdp.discount * np.dot(mdp.P[s, a], soft)
        q = target
        policy = np.exp(q / temperature) / np.exp(q / temperature).sum(1, keepdims=True)
        np.testing.assert_allclose(trace.q_values[k + 1], q, atol=1e-12)
        np.testing.assert_allclose(trace.policies[k + 1], policy, atol=1e-12)
    np.testing.assert_allclose(
        soft_value_iteration(mdp, temperature=temperature, iterations=12).values, trace.values, atol=1e-12
    )


def test_every_scheme_without_errors_reaches_the_optimum():
    mdp = garnet(10, 3, 3, discount=0.7, seed=0)
    goal = optimum(mdp)
    np.testing.assert_allclose(value_iteration(mdp, iterations=200).values[-1], goal.value, atol=1e-12)
    np.testing.assert_allclose(advantage_learning(mdp, alpha=0.5, iterations=300).values[-1], goal.value, atol=1e-10)
    assert np.abs(speedy_q_learning(mdp, iterations=2000).values[-1] - goal.value).max() < 0.01
    assert np.abs(q_learning(mdp, iterations=2000, exponent=0.51).values[-1] - goal.value).max() < 1e-6
    np.testing.assert_allclose(
        iq_dp(mdp, alpha=1.0, temperature=0.1, iterations=3000).policies[-1], goal.policy, atol=0.01
    )
    np.testing.assert_allclose(md_vi(mdp, kl=0.1, entropy=0.0, iterations=3000).policies[-1], goal.policy, atol=0.01)


def test_speedy_q_learning_follows_its_recursion():
    mdp, errors = two_armed(), np.random.default_rng(0).normal(size=(4, 1, 2))
    trace = speedy_q_learning(mdp, iterations=4, errors=GivenErrors(errors))
    old = q = np.zeros(2)
    for k in range(4):
        rate = 1 / (k + 1)
        new_target = mdp.r[0] + 0.5 * q.max() + errors[k, 0]
        old_target = mdp.r[0] + 0.5 * old.max() + errors[k, 0]
        old, q = q, q + rate * (old_target - q) + (1 - rate) * (new_target - old_target)
        np.testing.assert_allclose(trace.q_values[k + 1, 0], q)


def test_speedy_q_learning_is_iq_dp_with_kl_alone_at_vanishing_temperature():
    # with V_j = max Q_j, both keep the average of r + gamma P V_j + eps: k Q_k(speedy) = Q_k + V_1 + ..
    # + V_{k-1}
    mdp = garnet(10, 3, 3, seed=0)
    settings = {"iterations": 60, "errors": SampledTransitions(1), "seeds": 3}
    speedy = speedy_q_learning(mdp, **settings)
    limit = advantage_learning(mdp, alpha=1.0, **settings)
    near = iq_dp(mdp, alpha=1.0, temperature=1e-6, **settings)
    for k in range(1, 61):
        average = (limit.q_values[k] + limit.values[1:k].sum(0)[..., None]) / k
        np.testing.assert_allclose(speedy.q_values[k], average, atol=1e-11)
        average = (near.q_values[k] + near.values[1:k].sum(0)[..., None]) / k
        np.testing.assert_allclose(speedy.q_values[k], average, atol=1e-4)


def test_sampled_schemes_learn_where_value_iteration_keeps_its_noise():
    mdp = garnet(10, 3, 3, discount=0.7, seed=0)
    goal = optimum(mdp).value
    settings = {"iterations": 3000, "errors": SampledTransitions(1), "seeds": 5, "keep": "last"}
    speedy = np.abs(speedy_q_learning(mdp, **settings).values[-1] - goal).max()
    slow = np.abs(q_learning(mdp, exponent=0.51, **settings).values[-1] - goal).max()
    plain = np.abs(value_iteration(mdp, **settings).values[-1] - goal).max()
    assert speedy < 0.15
    assert slow < 0.4
    assert plain > 2 * slow


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize("alpha", [0.0, 0.9, 1.0])
def test_extreme_temperatures_stay_finite(alpha, temperature):
    mdp = garnet(10, 3, 3, seed=0)
    mdp = FiniteMDP(mdp.P, 1e3 * mdp.r, mdp.discount)
    for trace in (
        iq_dp(mdp, alpha=alpha, temperature=temperature, iterations=300),
        md_vi(mdp, kl=alpha * temperature, entropy=(1 - alpha) * temperature, iterations=300),
    ):
        assert np.isfinite(trace.values).all()
        assert np.isfinite(trace.log_policies).all()
        np.testing.assert_allclose(trace.policies.sum(-1), 1.0, atol=1e-9)


def test_many_seeds_cost_far_less_than_many_runs():
    mdp = garnet(300, 5, 5, seed=0)
    settings = {
        "alpha": 0.9,
        "temperature": 0.1,
        "iterations": 50,
        "errors": GaussianNoise(0.1),
        "keep": "last",
    }
    iq_dp(mdp, seeds=2, **settings)
    start = time.perf_counter()
    iq_dp(mdp, seeds=50, **settings)
    assert time.perf_counter() - start < 10.0  # about 0.15 s; the benchmark measures, this only guards
