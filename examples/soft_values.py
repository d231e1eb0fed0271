"""The soft values of a trained agent beside the exact ones, on a small random MDP that can be solved."""

import numpy as np

import implicitq
from implicitq.theory import as_gymnasium, garnet, optimum

TEMPERATURE = 0.3

if __name__ == "__main__":
    mdp = garnet(states=6, actions=3, branching=2, discount=0.8, seed=1)
    exact = optimum(mdp, temperature=TEMPERATURE)
    settings = {"temperature": TEMPERATURE, "discount": mdp.discount, "hidden": (64,), "learning_rate": 3e-3}
    with implicitq.make("iq", lambda: as_gymnasium(mdp, horizon=20), min_replay=500, **settings) as agent:
        agent.learn(6_000, progress=True)

        states, actions = np.arange(mdp.states), range(mdp.actions)
        value = agent.value(states)
        log_policy = np.stack([agent.log_prob(states, np.full(mdp.states, a)) for a in actions], axis=1)
        q = np.stack([agent.q_value(states, np.full(mdp.states, a)) for a in actions], axis=1)

    print("state   V learnt   V exact   greatest difference of the policies")
    for state in states:
        difference = np.abs(np.exp(log_policy[state]) - exact.policy[state]).max()
        print(f"{state:5}   {value[state]:8.3f}   {exact.value[state]:7.3f}   {difference:.3f}")
    soft_maximum = TEMPERATURE * np.log(np.exp(q / TEMPERATURE).sum(axis=1))
    print(f"V = T ln sum exp(Q / T), whatever was learnt: off by {np.abs(soft_maximum - value).max():.1e}")
