import numpy as np
import pytest
import scipy.sparse as sparse
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st
from random_mdps import mdps, reproducible
from scipy.optimize import linprog, root

from implicitq.theory import (
    FiniteMDP,
    GaussianNoise,
    GivenErrors,
    SampledTransitions,
    evaluate,
    iq_dp,
    md_vi,
    optimum,
    solve,
)
from implicitq.theory.library import (
    as_gymnasium,
    by_name,
    chain,
    forest,
    from_gymnasium,
    garnet,
    grid_world,
)
from implicitq.theory.mdp import FiniteMDP as FiniteMDPClass
from implicitq.theory.solve import greedy, iterate_to_optimum, log_of


def uniform_table(states=3, actions=2):
    return np.full((states, actions, states), 1.0 / states), np.zeros((states, actions))


def test_a_row_that_does_not_sum_to_one_is_named():
    P, r = uniform_table()
    P[2, 1, 0] += 0.1
    with pytest.raises(ValueError, match=r"state 2, action 1 sums to 1\.1; it must sum to 1"):
        FiniteMDP(P, r, 0.9)
    with pytest.raises(ValueError, match=r"state 2, action 1 sums to 1\.1"):
        FiniteMDP(sparse.csr_array(P.reshape(6, 3)), r, 0.9)


def test_a_negative_probability_is_named():
    P, r = uniform_table()
    P[1, 0] = [1.5, -0.5, 0.0]
    for table in (P, sparse.csr_array(P.reshape(6, 3))):
        with pytest.raises(ValueError, match=r"state 1, action 0 contains -0\.5; probabilities must be >= 0"):
            FiniteMDP(table, r, 0.9)


def test_not_a_number_in_p_or_r_is_named():
    P, r = uniform_table()
    P[0, 1, 2] = np.nan
    with pytest.raises(ValueError, match="state 0, action 1 contains nan"):
        FiniteMDP(P, r, 0.9)
    P, r = uniform_table()
    r[2, 0] = np.inf
    with pytest.raises(ValueError, match="r of state 2, action 0 is inf; rewards must be finite"):
        FiniteMDP(P, r, 0.9)


def test_wrong_shapes_name_what_came_and_what_is_accepted():
    P, r = uniform_table()
    with pytest.raises(ValueError, match=r"P must have shape .* = \[3, 2, 3\] to fit r, got \[3, 2\]"):
        FiniteMDP(P[0].T, r, 0.9)
    with pytest.raises(ValueError, match=r"Sparse P must have shape .* = \[6, 3\] to fit r, got \[3, 6\]"):
        FiniteMDP(sparse.csr_array(P.reshape(6, 3).T), r, 0.9)
    with pytest.raises(ValueError, match=r"r must have shape \[states, actions\], .* got \[3\]"):
        FiniteMDP(P, r[:, 0], 0.9)


@pytest.mark.parametrize("discount", [1.0, -0.1, float("nan"), "0.9", True])
def test_a_discount_outside_the_unit_interval_is_refused(discount):
    with pytest.raises(ValueError, match=r"discount must be a number in \[0, 1\), got"):
        FiniteMDP(*uniform_table(), discount)


@pytest.mark.parametrize("iterations", [-1, 2.5, "ten", True])
def test_impossible_iteration_counts_are_refused(iterations):
    with pytest.raises(ValueError, match="iterations must be an integer >= 0, got"):
        iq_dp(chain(), alpha=0.9, temperature=0.1, iterations=iterations)


def test_impossible_temperatures_and_weights_are_refused():
    for temperature in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="temperature must be a finite number > 0, got"):
            iq_dp(chain(), alpha=0.9, temperature=temperature, iterations=1)
    for alpha in (-0.1, 1.1):
        with pytest.raises(ValueError, match=r"alpha must be a number in \[0, 1\], got"):
            iq_dp(chain(), alpha=alpha, temperature=0.1, iterations=1)
    with pytest.raises(ValueError, match=r"kl \+ entropy must be > 0"):
        md_vi(chain(), kl=0.0, entropy=0.0, iterations=1)
    with pytest.raises(ValueError, match="kl must be a finite number >= 0, got -1"):
        md_vi(chain(), kl=-1.0, entropy=1.0, iterations=1)
    with pytest.raises(TypeError):
        md_vi(chain(), 0.1, 0.2, iterations=1)  # type: ignore[misc]
    with pytest.raises(ValueError, match="temperature must be a finite number >= 0"):
        optimum(chain(), -0.1)


def test_impossible_errors_seeds_and_records_are_refused():
    settings = {"alpha": 0.9, "temperature": 0.1, "iterations": 4}
    with pytest.raises(ValueError, match="samples must be an integer >= 1, got 0"):
        SampledTransitions(0)
    with pytest.raises(ValueError, match="scale must be a finite number >= 0"):
        GaussianNoise(-1.0)
    with pytest.raises(ValueError, match=r"errors must have shape .* = \[4, 10, 2\], got \[3, 10, 2\]"):
        iq_dp(chain(), errors=GivenErrors(np.zeros((3, 10, 2))), **settings)
    errors = np.zeros((4, 10, 2))
    errors[1, 3, 1] = np.nan
    with pytest.raises(ValueError, match="errors of step 2, state 3, action 1 are not finite"):
        iq_dp(chain(), errors=GivenErrors(errors), **settings)
    for seeds in (0, -1, [], [0.5]):
        with pytest.raises(ValueError, match="seeds must be"):
            iq_dp(chain(), seeds=seeds, **settings)
    for keep in ("some", 0, [], [3, 2], [5], [0.5]):
        with pytest.raises(ValueError, match="keep must be"):
            iq_dp(chain(), keep=keep, **settings)


def test_a_policy_that_is_no_distribution_is_named():
    policy = np.full((10, 2), 0.5)
    policy[4] = [0.7, 0.7]
    with pytest.raises(ValueError, match="policy in state 4 is not a distribution"):
        evaluate(chain(), policy)
    with pytest.raises(ValueError, match=r"A policy must have shape \[..., states, actions\] = \[..., 10, 2\]"):
        log_of(np.ones((2, 10)), chain())


def test_the_container_copies_and_protects_what_it_was_given():
    P, r = uniform_table()
    mdp = FiniteMDP(P, r, 0.9)
    P[0, 0] = [1.0, 0.0, 0.0]
    assert mdp.P[0, 0, 0] == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="read-only"):
        mdp.r[0, 0] = 1.0
    with pytest.raises(AttributeError):
        mdp.discount = 0.5  # type: ignore[misc]


def test_dense_and_sparse_tables_give_the_same_answers():
    dense = garnet(20, 3, 4, seed=1)
    thin = FiniteMDP(sparse.csr_array(dense.rows), dense.r, dense.discount)
    assert not dense.is_sparse
    assert thin.is_sparse
    values = np.random.default_rng(0).normal(size=(20, 5))
    np.testing.assert_allclose(dense.backup(values), thin.backup(values), atol=1e-14)
    np.testing.assert_allclose(dense.backup(values[:, 0]), dense.backup(values)[..., 0], atol=1e-14)
    for temperature in (0.0, 0.1):
        np.testing.assert_allclose(optimum(dense, temperature).value, optimum(thin, temperature).value, atol=1e-11)


def test_garnet_rows_have_the_asked_number_of_distinct_successors():
    for states, branching in [(50, 3), (20, 20), (12, 7), (400, 5)]:
        mdp = garnet(states, 4, branching, seed=2)
        assert (np.diff(mdp.csr.indptr) == branching).all()
        assert mdp.r.min() >= 0
        assert mdp.r.max() <= 1
    np.testing.assert_array_equal(garnet(30, 2, 3, seed=5).r, garnet(30, 2, 3, seed=5).r)
    with pytest.raises(ValueError, match=r"from 1 to the number of states \(3\), got 4"):
        garnet(3, 2, 4)


def test_two_state_forest_matches_the_hand_computed_optimum():
    # ages 0 and 1, no fire, gamma 1/2: wait at 0 (0), then wait for ever at 1 (4 each): V(1) = 8, V(0) = 4
    mdp = forest(2, fire=0.0, discount=0.5)
    np.testing.assert_allclose(optimum(mdp).value, [4.0, 8.0], atol=1e-13)
    np.testing.assert_allclose(optimum(mdp).q, [[4.0, 2.0], [8.0, 4.0]], atol=1e-13)
    np.testing.assert_array_equal(optimum(mdp).policy, [[1.0, 0.0], [1.0, 0.0]])


def test_chain_without_slip_walks_right_or_stays_left():
    mdp = chain(3, slip=0.0, discount=0.5)
    # right end: 1 / (1 - 0.5) = 2, then 1 and 0.5 on the way; staying left is worth 0.1 only
    np.testing.assert_allclose(optimum(mdp).value, [0.5, 1.0, 2.0], atol=1e-13)


def test_grid_world_without_slip_takes_the_shortest_way():
    mdp = grid_world(2, 2, slip=0.0, discount=0.5, step_reward=0.0)
    # the corner pays 1 and returns to the start two steps away: V = 1 + V / 8
    corner = 8 / 7
    np.testing.assert_allclose(optimum(mdp).value, [corner / 4, corner / 2, corner / 2, corner], atol=1e-13)


@pytest.mark.parametrize("name", ["frozen-lake", "taxi", "cliff-walking"])
def test_toy_text_tables_become_mdps_with_one_extra_absorbing_state(name):
    mdp = by_name(name)
    assert mdp.csr[[mdp.states * mdp.actions - 1]].toarray()[0, -1] == 1.0
    assert (mdp.r[-1] == 0).all()
    assert optimum(mdp).value[-1] == pytest.approx(0.0, abs=1e-12)


def test_cliff_walking_costs_one_per_step_of_the_safe_shortest_way():
    mdp = by_name("cliff-walking")
    steps = 13  # from the start, along the edge of the cliff, to the goal; each step pays -1
    assert optimum(mdp).value[36] == pytest.approx(-(1 - 0.95**steps) / 0.05, abs=1e-10)


def test_an_unknown_name_or_an_environment_without_table_is_refused():
    with pytest.raises(ValueError, match=r"mdp must be one of garnet, chain, .* got 'maze'"):
        by_name("maze")
    with pytest.raises(ValueError, match="has no transition table P"):
        from_gymnasium("CartPole-v1")


def test_the_gymnasium_wrapper_follows_the_table_and_its_seed():
    mdp = garnet(6, 3, 2, seed=3)
    environment = as_gymnasium(mdp, start=2, horizon=5)

    def episode(seed):
        state, _ = environment.reset(seed=seed)
        seen = [state]
        for step in range(5):
            state, reward, terminated, truncated, _ = environment.step(step % 3)
            assert mdp.P[seen[-1], step % 3, state] > 0
            assert reward == mdp.r[seen[-1], step % 3]
            assert not terminated
            assert truncated == (step == 4)
            seen.append(state)
        return seen

    assert episode(0)[0] == 2
    assert episode(1) == episode(1)
    assert any(episode(0) != episode(seed) for seed in range(1, 6))


def test_the_gymnasium_wrapper_passes_gymnasiums_own_checks():
    check_env(as_gymnasium(chain(5), horizon=3), skip_render_check=True)


def test_the_gymnasium_wrapper_samples_the_right_frequencies():
    mdp = FiniteMDP(np.array([[[0.3, 0.7]], [[0.3, 0.7]]]), np.zeros((2, 1)), 0.9)
    environment = as_gymnasium(mdp, start=[0.5, 0.5], horizon=10_000)
    environment.reset(seed=0)
    visits = np.mean([environment.step(0)[0] for _ in range(4000)])
    assert visits == pytest.approx(0.7, abs=4 * np.sqrt(0.21 / 4000))
    with pytest.raises(ValueError, match="action must be an integer from 0 to 0, got 1"):
        environment.step(1)
    for start in (2, -1, [0.5, 0.6]):
        with pytest.raises(ValueError, match="start must be"):
            as_gymnasium(mdp, start=start)


def test_the_public_class_is_importable_from_the_package():
    assert FiniteMDP is FiniteMDPClass


def test_bounded_iteration_keeps_its_promise_on_a_sparse_mdp():
    mdp = grid_world(30, 40, discount=0.98)
    for temperature in (0.0, 0.05):
        found = iterate_to_optimum(mdp, temperature=temperature, tolerance=1e-6)
        assert found.error <= 1e-6
        assert np.abs(found.value - optimum(mdp, temperature).value).max() <= 1e-6
    with pytest.raises(ValueError, match="tolerance must be a number > 0"):
        iterate_to_optimum(mdp, tolerance=0.0)


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
