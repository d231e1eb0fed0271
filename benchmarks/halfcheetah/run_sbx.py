"""SBX's SAC or CrossQ on a task, one folder per seed with the files that `implicitq collect` takes.

Usage: taskset -c 0 python run_sbx.py DIR [--algorithm crossq] [--env Ant-v5] [--seeds 0 1 2] [--steps 100000]
in the environment that benchmarks/peers/make.sh makes. Sizes 256-256, learning starts at 5,000 steps, all else as SBX
has it. Every 10,000 steps, ten deterministic episodes. Finished seeds are skipped.
"""

from __future__ import annotations

import argparse
import copy
import csv
import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
from sbx import SAC, CrossQ
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

ALGORITHMS = {"sac": SAC, "crossq": CrossQ}
EVAL_EVERY, EPISODES = 10_000, 10
SETTINGS = {
    "policy_kwargs": {"net_arch": [256, 256]},
    "learning_starts": 5_000,
    "train_freq": 1,
    "gradient_steps": 1,
}
PACKAGES = ("sbx-rl", "stable-baselines3", "jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "mujoco")


class Evaluation(BaseCallback):
    """Ten deterministic episodes every 10,000 steps; the clock stops meanwhile."""

    def __init__(self, folder: Path, env: str, seed: int) -> None:
        super().__init__()
        self.folder, self.env = folder, Monitor(gym.make(env))
        self.env.reset(seed=10_000 + seed)
        self.start, self.paused = time.monotonic(), 0.0
        self.start_cpu = time.process_time()  # seeds run in one process
        columns = ["step", "mean_return", "std_return", "mean_length"]
        columns += [f"return_{i}" for i in range(EPISODES)] + [f"length_{i}" for i in range(EPISODES)]
        self._write("evaluations.csv", columns, "w")
        self._write("timing.csv", ["step", "wall_seconds_without_evaluation", "cpu_seconds"], "w")

    def _on_step(self) -> bool:
        if self.num_timesteps % EVAL_EVERY == 0:
            begun = time.monotonic()
            seconds = round(begun - self.start - self.paused, 3)
            self._write("timing.csv", [self.num_timesteps, seconds, round(time.process_time() - self.start_cpu, 3)])
            returns, lengths = evaluate_policy(
                self.model, self.env, n_eval_episodes=EPISODES, deterministic=True, return_episode_rewards=True
            )
            summary = [self.num_timesteps, float(np.mean(returns)), float(np.std(returns)), float(np.mean(lengths))]
            self._write("evaluations.csv", [*summary, *map(float, returns), *lengths])
            print(f"step {self.num_timesteps}: {np.mean(returns):.1f} +- {np.std(returns):.1f}", flush=True)
            self.paused += time.monotonic() - begun
        return True

    def _write(self, name: str, values: list, mode: str = "a") -> None:
        with open(self.folder / name, mode, newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(values)


def run(folder: Path, algorithm: str, env: str, steps: int, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    versions = {"python": platform.python_version(), "threads": len(os.sched_getaffinity(0))}
    versions |= {package: importlib.metadata.version(package) for package in PACKAGES}
    (folder / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")
    about = {"algorithm": f"sbx-{algorithm}", "env": env, "steps": steps, "seed": seed, "eval_every": EVAL_EVERY}
    settings = copy.deepcopy(SETTINGS)  # SBX changes what it is given
    model = ALGORITHMS[algorithm]("MlpPolicy", env, seed=seed, **settings)
    model.learn(steps, callback=Evaluation(folder, env, seed))
    config = json.dumps({**about, **SETTINGS}, indent=2) + "\n"
    (folder / "config.json").write_text(config)  # last: it marks the seed as done


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="sac")
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        folder = arguments.directory / f"sbx-{arguments.algorithm}-{arguments.env}-seed{seed}"
        if not (folder / "config.json").exists():
            run(folder, arguments.algorithm, arguments.env, arguments.steps, seed)
