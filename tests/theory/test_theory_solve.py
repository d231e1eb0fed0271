import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_mdps import mdps, reproducible
from scipy.optimize import linprog, root

from implicitq.theory import FiniteMDP, evaluate, optimum, solve
from implicitq.theory.library import garnet, grid_world
from implicitq.theory.logspace import greedy


@given(mdps())
@reproducible
def test_the_plain_optimum_is_that_of_the_linear_programme(mdp):
    # least sum of V subject to V(s) >= r(s, a) + gamma P V for all s, a
    identity = np.repeat(np.eye(mdp.states), mdp.actions, axis=0)
    answer = linprog(np.ones(mdp.states), mdp.discount * mdp.rows - identity, -mdp.r.ravel(), bounds=(None, None))
    scale = max(1.0, np.abs(answer.x).max())
    np.testing.assert_allclose(optimum(mdp).value, answer.x, atol=1e-6 * scale)  # the programme's own tolerance is 1e-7


@given(mdps(largest_discount=0.9), st.floats(0.05, 2.0))
@reproducible
def test_the_regularised_optimum_is_the_root_of_the_soft_bellman_equation(mdp, temperature):
    found = optimum(mdp, temperature)

    def residual(value):
        q = mdp.r + mdp.discount * (mdp.rows @ value).reshape(mdp.r.shape)
        return np.logaddexp.reduce(q / temperature, axis=1) * temperature - value

    answer = root(residual, np.zeros(mdp.states), tol=1e-12)
    if answer.success:
        np.testing.assert_allclose(found.value, answer.x, atol=1e-7 * max(1.0, np.abs(answer.x).max()))
    assert np.abs(residual(found.value)).max() <= 1e-11 * max(1.0, np.abs(found.value).max())


@given(mdps(), st.sampled_from([0.0, 1e-6, 0.1, 1.0]), st.integers(0, 1000))
@reproducible
def test_no_policy_beats_the_optimum(mdp, temperature, seed):
    best = optimum(mdp, temperature)
    rng = np.random.default_rng(seed)
    policies = rng.dirichlet(np.ones(mdp.actions), size=(5, mdp.states))
    slack = 1e-10 * max(1.0, np.abs(best.value).max()) / (1 - mdp.discount)
    assert (evaluate(mdp, policies, temperature=temperature) <= best.value + slack).all()
    np.testing.assert_allclose(evaluate(mdp, best.policy, temperature=temperature), best.value, atol=slack)


def test_evaluation_matches_a_hand_computed_value():
    # one state, two actions paying 1 and 0, gamma 1/2: V = (p + t H) / (1 - 1/2)
    mdp = FiniteMDP(np.ones((1, 2, 1)), np.array([[1.0, 0.0]]), 0.5)
    assert evaluate(mdp, [[0.75, 0.25]])[0] == pytest.approx(1.5)
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert evaluate(mdp, [[0.75, 0.25]], temperature=2.0)[0] == pytest.approx(1.5 + 4 * entropy)
    assert evaluate(mdp, [[1.0, 0.0]], temperature=2.0)[0] == pytest.approx(2.0)
    soft = optimum(mdp, 1.0)
    assert soft.value[0] == pytest.approx(2 * np.log(1 + np.e))
    np.testing.assert_allclose(soft.policy[0], [np.e / (1 + np.e), 1 / (1 + np.e)])


def test_large_mdps_are_solved_to_the_same_answer_as_small_ones(monkeypatch):
    for mdp in (garnet(200, 3, 4, seed=0), grid_world(12, 10)):
        exact = [optimum(mdp, temperature) for temperature in (0.0, 0.1)]
        worth = evaluate(mdp, exact[1].policy, temperature=0.1)
        monkeypatch.setattr(solve, "DIRECT_STATES", 10)
        for temperature, answer in zip((0.0, 0.1), exact, strict=True):
            found = optimum(mdp, temperature)
            np.testing.assert_allclose(found.value, answer.value, atol=1e-8)
            np.testing.assert_allclose(found.policy, answer.policy, atol=1e-6)
        np.testing.assert_allclose(evaluate(mdp, exact[1].policy, temperature=0.1), worth, atol=1e-9)
        monkeypatch.undo()


def test_tied_actions_share_the_probability():
    mdp = FiniteMDP(np.ones((1, 3, 1)), np.array([[1.0, 1.0, 0.0]]), 0.9)
    np.testing.assert_array_equal(optimum(mdp).policy, [[0.5, 0.5, 0.0]])
    np.testing.assert_array_equal(np.exp(greedy(np.array([[2.0, 2.0, 1.0]]))), [[0.5, 0.5, 0.0]])
