"""Steps per second of environments in processes of their own: ours beside Gymnasium's AsyncVectorEnv, by turns.

python benchmarks/peers/async_steps.py [--steps 2000] [--repeats 5]; prints the medians and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import gymnasium as gym
import numpy as np

from implicitq.envs.making import EnvironmentMaker
from implicitq.envs.vector import TrainingEnvironments

TASKS = ("Pendulum-v1", "HalfCheetah-v5")
ENVIRONMENTS = 4


def ours(task: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """A function that makes a step of all environments, and one that closes them."""
    envs = TrainingEnvironments(EnvironmentMaker(task), ENVIRONMENTS, "async", 0)
    envs.start()
    actions = np.zeros((ENVIRONMENTS, envs.spec.action_dimensions), np.float32)

    def step() -> None:
        done = envs.step(actions)
        ended = done.terminated | done.truncated
        if ended.any():
            envs.next_episodes(ended)

    return step, envs.close


def gymnasiums(task: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """As ours with respect to processes, which are started afresh; its default is shared memory."""
    envs = gym.vector.AsyncVectorEnv([lambda: gym.make(task)] * ENVIRONMENTS, context="spawn")
    envs.reset(seed=0)
    actions = np.zeros(envs.action_space.shape, np.float32)
    return lambda: envs.step(actions) and None, envs.close


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_000, help="of every environment in one repeat")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for task in TASKS:
        made = {"ours": ours(task), "gymnasium": gymnasiums(task)}
        rates: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(options.repeats):
            for name, (step, _) in made.items():
                began = time.perf_counter()
                for _ in range(options.steps):
                    step()
                rates[name].append(ENVIRONMENTS * options.steps / (time.perf_counter() - began))
        for _, close in made.values():
            close()
        middle = {name: statistics.median(found) for name, found in rates.items()}
        told = ", ".join(f"{name} {rate:,.0f} steps/s" for name, rate in middle.items())
        ratio = middle["ours"] / middle["gymnasium"]
        print(f"{task}, {ENVIRONMENTS} environments: {told}, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
