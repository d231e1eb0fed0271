"""The trained agents against the exact optimum of a small MDP, computed by code that shares nothing with them."""

import numpy as np
import pytest

import implicitq
from implicitq.theory import garnet, optimum
from implicitq.theory.library import as_gymnasium

DISCOUNT = 0.8


@pytest.mark.parametrize(("algorithm", "alpha"), [("iq", 0.0), ("miq", 0.5)])
def test_the_agent_reaches_the_optimum_regularised_at_one_minus_alpha_times_the_temperature(algorithm, alpha):
    mdp = garnet(states=6, actions=3, branching=2, discount=DISCOUNT, seed=1)
    entropy_weight = 0.3
    exact = optimum(mdp, temperature=entropy_weight)
    agent = implicitq.make(
        algorithm,
        lambda: as_gymnasium(mdp, horizon=20),
        seed=0,
        temperature=entropy_weight / (1 - alpha),
        alpha=alpha,
        discount=DISCOUNT,
        hidden=(64,),
        learning_rate=3e-3,
        min_replay=500,
        eval_every=10**6,
    )
    agent.learn(6_000)
    states = np.arange(mdp.states)
    policy = np.stack(
        [np.exp(agent.log_prob(states, np.full(mdp.states, action))) for action in range(mdp.actions)], axis=1
    )
    np.testing.assert_allclose(agent.value(states), exact.value, atol=0.05 * np.ptp(exact.q))
    np.testing.assert_allclose(policy, exact.policy, atol=0.06)
    # The test can fail: an unregularised or differently regularised optimum is far away.
    for other in (0.0, 2 * entropy_weight):
        assert np.abs(agent.value(states) - optimum(mdp, temperature=other).value).max() > 0.2 * np.ptp(exact.q)
