"""What an agent's Q-values know of its actions: Q(s, a) - V(s) beside what the simulator says.

    python benchmarks/search/advantages.py RUN [RUN ...]

In states that the policy visits, many actions are tried in copies of the simulator: draws of the policy with a share of
their dimensions replaced by random numbers. After each the policy goes on with its deterministic actions for --horizon
steps, and V stands for the rest. What an action returns more than the mean of all that were tried in its state is its
true advantage. For MuJoCo tasks of Gymnasium.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gymnasium
import numpy as np

import implicitq

Simulator = tuple[np.ndarray, np.ndarray]  # positions and velocities


def visited(agent: implicitq.Agent, count: int, rng: np.random.Generator) -> tuple[np.ndarray, list[Simulator]]:
    """Observations and states of the simulator, one in every ten steps of episodes under the sampling policy."""
    env = gymnasium.make(agent.config.env)
    observations, simulators, seed = [], [], 0
    while len(simulators) < count:
        observation, _ = env.reset(seed=seed)
        over, seed = False, seed + 1
        while not over and len(simulators) < count:
            if rng.random() < 0.1:
                data = env.unwrapped.data
                observations.append(observation)
                simulators.append((data.qpos.copy(), data.qvel.copy()))
            observation, _, terminated, truncated, _ = env.step(agent.predict(observation)[0])
            over = terminated or truncated
    return np.array(observations), simulators


def returns(agent: implicitq.Agent, simulators: list[Simulator], actions: np.ndarray, horizon: int) -> np.ndarray:
    """Discounted return of each action [B, D] in its state, then of the deterministic policy, then V: [B]."""
    env = gymnasium.make(agent.config.env).unwrapped
    env.reset(seed=0)
    now, going, total, weight = list(simulators), np.ones(len(actions), bool), np.zeros(len(actions)), 1.0
    observations = np.zeros((len(actions), *env.observation_space.shape))
    for _ in range(horizon):
        for i in np.flatnonzero(going):
            env.set_state(*now[i])
            observations[i], reward, terminated, _, _ = env.step(actions[i])
            now[i] = env.data.qpos.copy(), env.data.qvel.copy()
            total[i] += weight * reward
            going[i] = not terminated
        weight *= agent.config.discount
        actions = agent.predict(observations, deterministic=True)[0]
    return total + weight * going * agent.value(observations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--states", type=int, default=150)
    parser.add_argument("--actions", type=int, default=24, help="tried in every state")
    parser.add_argument("--replaced", type=float, default=1 / 3, help="share of dimensions that are random")
    parser.add_argument("--horizon", type=int, default=60, help="steps before V stands for the rest")
    options = parser.parse_args()
    print("| run | correlation | true per unit of Q - V | spread of Q - V | spread of the truth |")
    print("|---|---:|---:|---:|---:|")
    for run in options.runs:
        agent, rng = implicitq.load(run), np.random.default_rng(0)
        observations, simulators = visited(agent, options.states, rng)
        many = np.repeat(observations, options.actions, axis=0)
        actions = agent.predict(many)[0]
        low, high = agent.action_space.low, agent.action_space.high
        actions = np.where(rng.random(actions.shape) < options.replaced, rng.uniform(low, high, actions.shape), actions)
        each = [simulator for simulator in simulators for _ in range(options.actions)]
        true = returns(agent, each, actions, options.horizon).reshape(options.states, -1)
        claimed = agent.q_value(many, actions).astype(float).reshape(options.states, -1)
        true, claimed = (table - table.mean(axis=1, keepdims=True) for table in (true, claimed))
        both, own = (true * claimed).sum(), (claimed**2).sum()
        correlation = both / np.sqrt(own * (true**2).sum())
        print(f"| {run} | {correlation:.2f} | {both / own:.2f} | {claimed.std():.2f} | {true.std():.2f} |", flush=True)


if __name__ == "__main__":
    main()
