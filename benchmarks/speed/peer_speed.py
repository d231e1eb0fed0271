"""Training steps per second of a peer's SAC on HalfCheetah-v5, without evaluations; prints one line of JSON.

Usage: python peer_speed.py {sbx,stable-baselines3} --hidden 512 512 [--steps 1000]
Runs in an environment of its own, with the peer and gymnasium[mujoco].
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("peer", choices=["sbx", "stable-baselines3"])
parser.add_argument("--hidden", type=int, nargs="+", default=[512, 512])
parser.add_argument("--steps", type=int, default=1_000)
arguments = parser.parse_args()
if arguments.peer == "sbx":
    from sbx import SAC
else:
    import torch
    from stable_baselines3 import SAC

    torch.set_num_threads(len(os.sched_getaffinity(0)))

settings = {"policy_kwargs": {"net_arch": arguments.hidden}, "learning_starts": 1_000, "seed": 0}
model = SAC("MlpPolicy", "HalfCheetah-v5", train_freq=1, gradient_steps=1, **settings)
model.learn(1_200)  # fills the replay, compiles, warms up
start = time.perf_counter()
model.learn(arguments.steps, reset_num_timesteps=False)
seconds = time.perf_counter() - start
packages = ("sbx-rl", "stable-baselines3", "jax", "torch", "gymnasium", "mujoco")
found = {
    "algorithm": f"{arguments.peer} sac",
    "hidden": arguments.hidden,
    "steps_per_second": arguments.steps / seconds,
    "versions": {name: importlib.metadata.version(name) for name in packages},
}
print(json.dumps(found))
