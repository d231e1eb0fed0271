"""SBX's SAC on HalfCheetah-v5 for 100,000 steps, one folder per seed with the files that `implicitq collect` takes.

Usage: taskset -c 0 python run_sbx.py DIR [--seeds 0 1 2]   (in an environment with sbx-rl and gymnasium[mujoco])
Sizes 256-256, learning starts at 5,000 steps, all else as SBX has it. Finished seeds are skipped.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
from sbx import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

ENV, STEPS, EVAL_EVERY, EPISODES = "HalfCheetah-v5", 100_000, 10_000, 10
SETTINGS = {
    "policy_kwargs": {"net_arch": [256, 256]},
    "learning_starts": 5_000,
    "train_freq": 1,
    "gradient_steps": 1,
}
PACKAGES = ("sbx-rl", "stable-baselines3", "jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "mujoco")


class Evaluation(BaseCallback):
    """Ten deterministic episodes every 10,000 steps; the clock stops meanwhile."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__()
        self.folder, self.env = folder, Monitor(gym.make(ENV))
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


def run(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    versions = {"python": platform.python_version(), "threads": len(os.sched_getaffinity(0))}
    versions |= {package: importlib.metadata.version(package) for package in PACKAGES}
    (folder / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")
    config = {"algorithm": "sbx-sac", "env": ENV, "steps": STEPS, "seed": seed, "eval_every": EVAL_EVERY, **SETTINGS}
    model = SAC("MlpPolicy", ENV, seed=seed, **SETTINGS)
    model.learn(STEPS, callback=Evaluation(folder, seed))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")  # last: it marks the seed as done


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        folder = arguments.directory / f"sbx-sac-256-seed{seed}"
        if not (folder / "config.json").exists():
            run(folder, seed)
