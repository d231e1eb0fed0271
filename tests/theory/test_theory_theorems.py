import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_mdps import alphas, error_models, mdps, reproducible, temperatures
from scipy.optimize import minimize

from implicitq.theory import (
    Adversary,
    GaussianNoise,
    evaluate,
    iq_dp,
    optimum,
    theorem_1,
    theorem_2,
    value_iteration,
)
from implicitq.theory.bounds import policy_gap, regularised_q
from implicitq.theory.library import garnet
from implicitq.theory.solve import entropy, soft_max

q_tables = st.integers(0, 2**32 - 1).map(lambda seed: 5 * np.random.default_rng(seed).normal(size=(4, 3)))


def kl_divergence(log_policy: np.ndarray, log_reference: np.ndarray) -> np.ndarray:
    """KL(pi || mu) = <pi, ln pi - ln mu>, for a reference with full support and 0 ln 0 = 0."""
    finite = np.where(np.isneginf(log_policy), 0.0, log_policy)
    return (np.exp(log_policy) * (finite - log_reference)).sum(axis=-1)


@given(q_tables, temperatures)
@reproducible
def test_lemma_1_a_q_value_splits_into_its_softmax_and_its_log_sum_exp(q, temperature):
    value, advantage = soft_max(q, temperature)
    policy = np.exp(advantage / temperature)
    rounding = 1e-15 * np.abs(q).max() / temperature
    np.testing.assert_allclose(policy.sum(-1), 1.0, atol=1e-12 + 10 * rounding)
    np.testing.assert_allclose(advantage + value[:, None], q, atol=1e-13)
    if temperature > 0.1:  # where the formula of the lemma can be evaluated as it stands
        np.testing.assert_allclose(value, temperature * np.log(np.exp(q / temperature).sum(-1)), atol=1e-10)
        np.testing.assert_allclose(policy, np.exp(q / temperature) / np.exp(q / temperature).sum(-1, keepdims=True))


@given(q_tables, alphas, st.floats(0.05, 5.0), st.integers(0, 1000))
@reproducible
def test_lemma_2_the_regularised_greedy_policy_beats_every_other_and_its_value_is_the_normaliser(
    q, alpha, temperature, seed
):
    rng = np.random.default_rng(seed)
    log_reference = np.log(rng.dirichlet(np.ones(3), size=4))

    def objective(log_policy):
        gain = (np.exp(log_policy) * q).sum(-1) + (1 - alpha) * temperature * entropy(log_policy)
        return gain - alpha * temperature * kl_divergence(log_policy, log_reference)

    value, advantage = soft_max(q + alpha * temperature * log_reference, temperature)
    np.testing.assert_allclose(objective(advantage / temperature), value, atol=1e-10 * max(1.0, np.abs(value).max()))
    for _ in range(20):
        other = rng.dirichlet(np.full(3, rng.choice([0.2, 1.0, 5.0])), size=4)
        with np.errstate(divide="ignore"):
            assert (objective(np.log(other)) <= value + 1e-10).all()


def test_lemma_2_agrees_with_a_numerical_maximiser():
    q, reference, alpha, temperature = np.array([1.0, 0.2, -0.5]), np.array([0.2, 0.3, 0.5]), 0.7, 0.6

    def loss(policy):
        policy = np.maximum(policy, 1e-12)
        regular = (1 - alpha) * np.log(policy) + alpha * (np.log(policy) - np.log(reference))
        return -(policy * (q - temperature * regular)).sum()

    sums_to_one = {"type": "eq", "fun": lambda policy: policy.sum() - 1}
    answer = minimize(loss, np.full(3, 1 / 3), bounds=[(0, 1)] * 3, constraints=sums_to_one, options={"ftol": 1e-14})
    value, advantage = soft_max(q + alpha * temperature * np.log(reference), temperature)
    np.testing.assert_allclose(answer.x, np.exp(advantage / temperature), atol=1e-5)
    assert -answer.fun == pytest.approx(float(value), abs=1e-9)


@given(mdps(), alphas, temperatures, error_models)
@reproducible
def test_theorem_1_holds_at_every_iteration_with_and_without_errors(mdp, alpha, temperature, errors):
    sides = theorem_1(mdp, alpha=alpha, temperature=temperature, iterations=40, errors=errors, seeds=2)
    assert sides.policy_difference[0] == 0
    assert sides.value_difference[0] == 0
    assert (sides.policy_difference <= sides.allowance).all()
    assert (sides.value_difference <= sides.allowance).all()
    assert (sides.q_difference <= sides.allowance).all()  # Q_k = t ln pi_{k+1} - alpha t ln pi_k + V_k of App. A.4


@given(mdps(), st.floats(0.0, 1.0))
@reproducible
def test_theorem_1_needs_no_allowance_beyond_1e_10_at_ordinary_temperatures(mdp, alpha):
    sides = theorem_1(mdp, alpha=alpha, temperature=0.5, iterations=30)
    scale = max(1.0, mdp.reward_bound / (1 - mdp.discount))
    assert sides.policy_difference.max() <= 1e-10 * scale
    assert sides.value_difference.max() <= 1e-10 * scale


def test_theorem_1_in_the_papers_own_indices():
    # pi_{k+2} = argmax <pi, r + gamma P V_k> + (1 - alpha) t H(pi) - alpha t KL(pi || pi_{k+1}), from
    # the record
    mdp, alpha, temperature = garnet(5, 3, 2, seed=1), 0.7, 0.3
    trace = iq_dp(mdp, alpha=alpha, temperature=temperature, iterations=6)
    V = dict(enumerate(trace.values))
    pi = {k + 1: policy for k, policy in enumerate(trace.policies)}
    assert (V[0] == 0).all()
    np.testing.assert_allclose(pi[1], 1 / 3)
    for k in range(6):
        q = mdp.r + mdp.discount * mdp.P @ V[k]
        weights = pi[k + 1] ** alpha * np.exp(q / temperature)
        np.testing.assert_allclose(pi[k + 2], weights / weights.sum(-1, keepdims=True), atol=1e-12)
        bonus = (1 - alpha) * entropy(np.log(pi[k + 2])) - alpha * kl_divergence(np.log(pi[k + 2]), np.log(pi[k + 1]))
        np.testing.assert_allclose(V[k + 1], (pi[k + 2] * q).sum(-1) + temperature * bonus, atol=1e-12)
        left = temperature * np.log(pi[k + 2]) + V[k + 1][:, None]
        np.testing.assert_allclose(left, q + alpha * temperature * np.log(pi[k + 1]), atol=1e-12)


@given(mdps(), alphas, temperatures, error_models)
@reproducible
def test_theorem_2_bounds_the_gap_at_every_iteration(mdp, alpha, temperature, errors):
    sides = theorem_2(mdp, iq_dp(mdp, alpha=alpha, temperature=temperature, iterations=25, errors=errors, seeds=2))
    scale = max(1.0, mdp.reward_bound, temperature) / (1 - mdp.discount) ** 2
    assert sides.gap.shape == sides.main.shape == sides.remainder.shape == (25, 2)
    assert (sides.gap <= sides.bound + 1e-11 * scale).all()
    assert (sides.main >= 0).all()
    assert (sides.remainder >= 0).all()


def test_theorem_2s_main_term_alone_is_no_bound_at_finite_k():
    sides = theorem_2(
        garnet(8, 3, 3, seed=0), iq_dp(garnet(8, 3, 3, seed=0), alpha=0.9, temperature=0.5, iterations=10)
    )
    assert (sides.main == 0).all()
    assert (sides.gap > 0).all()


def test_theorem_2s_main_terms_are_the_papers_formulas():
    mdp = garnet(4, 2, 2, seed=3)
    gamma = mdp.discount
    for alpha in (0.6, 1.0):
        trace = iq_dp(mdp, alpha=alpha, temperature=0.2, iterations=7, errors=GaussianNoise(0.1))
        eps, main = trace.errors, theorem_2(mdp, trace).main
        for k in range(1, 8):
            if alpha == 1.0:
                expected = 2 / (1 - gamma) * np.abs(eps[1 : k + 1].mean(0)).max()
            else:
                E = [(1 - alpha) * sum(alpha ** (j - i) * eps[i] for i in range(1, j + 1)) for j in range(1, k + 1)]
                inner = (1 - gamma) * sum(gamma ** (k - j) * np.abs(E[j - 1]).max() for j in range(1, k + 1))
                expected = 2 / (1 - gamma) ** 2 * inner
            assert main[k - 1] == pytest.approx(expected, rel=1e-12)


def test_theorem_2s_left_side_and_remainders_are_those_of_the_documentation():
    mdp, temperature = garnet(4, 2, 2, seed=3), 0.2
    gamma, r_max = mdp.discount, np.abs(mdp.r).max()
    for alpha in (0.0, 0.6, 1.0):
        trace = iq_dp(mdp, alpha=alpha, temperature=temperature, iterations=7, errors=GaussianNoise(0.1))
        t = (1 - alpha) * temperature
        best, sides = optimum(mdp, t), theorem_2(mdp, trace)
        for k in range(1, 8):
            value = evaluate(mdp, trace.policies[k], temperature=t)  # after k steps: the paper's pi_{k+1}
            assert sides.gap[k - 1] == pytest.approx(np.abs(best.q - mdp.backup(value)).max(), rel=1e-9)
            if alpha == 1.0:
                expected = gamma / (1 - gamma) * (temperature * np.log(2) + 2 * np.abs(trace.values[k]).max()) / k
            else:
                start = [alpha**j * r_max + gamma * alpha ** (j - 1) * t * np.log(2) for j in range(1, k + 1)]
                fading = sum(gamma ** (k - j) * start[j - 1] for j in range(1, k + 1))
                expected = 2 * gamma / (1 - gamma) * (gamma**k * np.abs(best.q).max() + fading)
            assert sides.remainder[k - 1] == pytest.approx(expected, rel=1e-12)


@given(mdps(), st.floats(0.0, 0.99), st.floats(0.05, 5.0))
@reproducible
def test_averaged_iq_dp_is_soft_value_iteration_with_averaged_errors(mdp, alpha, temperature):
    # behind Theorem 2 for alpha < 1: h_k = T h_{k-1} + E_k - delta_k, and pi_{k+1} = softmax(h_k / t)
    trace = iq_dp(mdp, alpha=alpha, temperature=temperature, iterations=12, errors=GaussianNoise(0.3))
    t, log_a = (1 - alpha) * temperature, np.log(mdp.actions)
    h, E = np.zeros(mdp.r.shape), np.zeros(mdp.r.shape)
    scale = max(1.0, np.abs(trace.q_values).max())
    for k in range(1, 13):
        delta = alpha**k * mdp.r + mdp.discount * alpha ** (k - 1) * t * log_a
        E = alpha * E + (1 - alpha) * trace.errors[k]
        expected = mdp.backup(soft_max(h, t)[0]) + E - delta
        h = alpha * h + (1 - alpha) * regularised_q(trace)[k]
        np.testing.assert_allclose(h, expected, atol=1e-11 * scale)
        np.testing.assert_allclose(soft_max(h, t)[1], t * trace.log_policies[k], atol=1e-11 * scale)


@given(mdps(), st.floats(0.05, 5.0))
@reproducible
def test_the_average_of_kl_regularised_q_values_almost_solves_the_bellman_equation(mdp, temperature):
    # the step behind Theorem 2 for alpha = 1: h_k = r + gamma P W_k + mean eps - gamma P V_k / k
    trace = iq_dp(mdp, alpha=1.0, temperature=temperature, iterations=12, errors=GaussianNoise(0.3))
    scale = max(1.0, np.abs(trace.q_values).max())
    for k in range(1, 13):
        h, W = regularised_q(trace)[1 : k + 1].mean(0), trace.values[1 : k + 1].mean(0)
        rest = trace.errors[1 : k + 1].mean(0) - mdp.discount * mdp.expect(trace.values[k]) / k
        np.testing.assert_allclose(h, mdp.backup(W) + rest, atol=1e-11 * scale)
        uniform = np.full(mdp.r.shape, -np.log(mdp.actions))
        divergence = kl_divergence(trace.log_policies[k], uniform)
        maximum = (trace.policies[k] * h).sum(-1) - temperature / k * divergence
        np.testing.assert_allclose(W, maximum, atol=1e-11 * scale)


def test_theorem_2s_remainders_vanish_as_fast_as_stated():
    mdp = garnet(6, 3, 2, discount=0.8, seed=2)
    averaged = theorem_2(mdp, iq_dp(mdp, alpha=1.0, temperature=0.5, iterations=400)).remainder
    assert averaged[-1] * 400 == pytest.approx(averaged[199] * 200, rel=0.05)  # O(1/k)
    mixed = theorem_2(mdp, iq_dp(mdp, alpha=0.9, temperature=0.5, iterations=400)).remainder
    assert mixed[-1] * 400 < 1e-10  # o(1/k): geometric
    # and not looser than 4/(1-gamma) (r_max + t ln A)/(1-gamma) / k, which goes without errors
    wide = 4 / 0.2 * (mdp.reward_bound + 0.5 * np.log(3)) / 0.2 / np.arange(1, 401)
    assert (averaged <= wide).all()


def test_theorem_2_asks_for_a_full_record_of_a_regularised_scheme():
    mdp = garnet(4, 2, 2)
    with pytest.raises(ValueError, match='keep="all"'):
        theorem_2(mdp, iq_dp(mdp, alpha=0.9, temperature=0.1, iterations=4, keep=2))
    with pytest.raises(
        ValueError, match="needs a record of IQ-DP or MD-VI with at least one step, got value iteration"
    ):
        theorem_2(mdp, value_iteration(mdp, iterations=4))


def test_independent_noise_averages_out_at_alpha_1_and_leaves_a_floor_at_alpha_0():
    mdp = garnet(20, 4, 3, seed=0)
    settings = {
        "temperature": 0.1,
        "iterations": 3000,
        "errors": GaussianNoise(0.5),
        "seeds": 10,
        "keep": [30, 300, 3000],
    }
    averaging = policy_gap(mdp, iq_dp(mdp, alpha=1.0, **settings).log_policies).mean(1)
    plain = policy_gap(mdp, iq_dp(mdp, alpha=0.0, **settings).log_policies, temperature=0.1).mean(1)
    assert averaging[1] < averaging[0] / 2
    assert averaging[2] < averaging[1] / 2
    assert averaging[2] < plain[2] / 10
    assert plain[2] > plain[1] / 2


def test_an_adversary_does_not_average_out():
    mdp = garnet(20, 4, 3, seed=0)
    trace = iq_dp(mdp, alpha=1.0, temperature=0.1, iterations=2000, errors=Adversary(0.3), keep="last")
    assert policy_gap(mdp, trace.log_policies)[0] > 0.5
    noise = iq_dp(mdp, alpha=1.0, temperature=0.1, iterations=2000, errors=GaussianNoise(0.3), keep="last")
    assert policy_gap(mdp, noise.log_policies)[0] < 0.1


@given(
    mdps(largest_discount=0.9),
    st.floats(0.0, 0.95),
    st.floats(-3.0, 0.5).map(lambda exponent: 10.0**exponent),
)
@reproducible
def test_the_fixed_point_is_the_optimum_regularised_at_one_minus_alpha_times_temperature(mdp, alpha, temperature):
    trace = iq_dp(mdp, alpha=alpha, temperature=temperature, iterations=1500, keep="last")
    goal = optimum(mdp, (1 - alpha) * temperature)
    size = max(1.0, np.abs(goal.q).max())
    np.testing.assert_allclose(trace.values[-1], goal.value, atol=1e-9 * size)
    # ln pi is the soft advantage divided by (1 - alpha) temperature
    rounding = 1e-12 * size / ((1 - alpha) * temperature)
    np.testing.assert_allclose(trace.policies[-1], goal.policy, atol=1e-8 + rounding)
    advantage = goal.q - goal.value[:, None]
    np.testing.assert_allclose(trace.log_policies[-1] * (1 - alpha) * temperature, advantage, atol=1e-8 * size)
