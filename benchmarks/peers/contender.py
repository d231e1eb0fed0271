"""One agent that waits to be timed; run.py starts it in the Python that has its library, and talks to it in lines.

python contender.py LIBRARY ALGORITHM --cores 0 1 --hidden 512 512 --env HalfCheetah-v5 --warm-up 1000 200
says what it is, as JSON, when everything is compiled and warm; then answers every `train STEPS` or `predict CALLS` with
the seconds that it took.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable

PACKAGES = ("implicitq", "stable-baselines3", "sbx-rl", "torch", "jax", "jaxlib", "numpy", "gymnasium", "mujoco")

Work = Callable[[int], None]


def peer(library: str, algorithm: str, chosen: argparse.Namespace) -> tuple[Work, Work, dict[str, object]]:
    """Stable-Baselines3 or SBX, as its users call it: one update per step, and its own settings but for the sizes."""
    if library == "sbx":
        import sbx as package
    else:
        import stable_baselines3 as package
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
    made = {"sac": "SAC", "crossq": "CrossQ"}[algorithm]
    filled, updated = chosen.warm_up
    settings = {"learning_starts": filled, "train_freq": 1, "gradient_steps": 1}
    model = getattr(package, made)(
        "MlpPolicy", chosen.env, seed=0, policy_kwargs={"net_arch": chosen.hidden}, **settings
    )
    model.learn(filled + updated)
    observation = model.observation_space.sample()

    def train(steps: int) -> None:
        model.learn(steps, reset_num_timesteps=False)

    def predict(calls: int) -> None:
        for _ in range(calls):
            model.predict(observation, deterministic=True)

    return train, predict, {"batch_size": model.batch_size}


def ours(algorithm: str, chosen: argparse.Namespace) -> tuple[Work, Work, dict[str, object]]:
    import implicitq
    from implicitq.bench.loop import WarmLoop

    agent = implicitq.make(algorithm, chosen.env, hidden=tuple(chosen.hidden))
    filled, updated = chosen.warm_up
    loop = WarmLoop(agent.config, filled=filled, updated=updated)
    observation = agent.observation_space.sample()

    def predict(calls: int) -> None:
        for _ in range(calls):
            agent.predict(observation, deterministic=True)

    return loop.advance, predict, {"batch_size": agent.config.batch_size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=["implicitq", "sbx", "stable-baselines3"])
    parser.add_argument("algorithm")
    parser.add_argument("--cores", type=int, nargs="+", required=True)
    parser.add_argument("--hidden", type=int, nargs="+", required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--warm-up", type=int, nargs=2, required=True, help="steps before the first update, and after")
    chosen = parser.parse_args()
    os.sched_setaffinity(0, chosen.cores)  # before any library counts them
    if chosen.library == "implicitq":
        train, predict, about = ours(chosen.algorithm, chosen)
    else:
        train, predict, about = peer(chosen.library, chosen.algorithm, chosen)
    installed = {package: _version(package) for package in PACKAGES}
    say({**about, "versions": {name: version for name, version in installed.items() if version is not None}})
    works = {"train": train, "predict": predict}
    for line in sys.stdin:
        what, count = line.split()
        start = time.perf_counter()
        works[what](int(count))
        say({"seconds": time.perf_counter() - start})


def say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
