"""Who only loads and predicts needs little: tried in fresh processes where nothing else can be imported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import implicitq

# What docs/sharing.md says is enough, with what these packages need themselves.
ENOUGH = {
    *("numpy", "jax", "jaxlib", "equinox", "gymnasium", "safetensors"),
    *("scipy", "opt_einsum", "ml_dtypes", "jaxtyping", "wadler_lindig", "typing_extensions"),
    *("cloudpickle", "farama_notifications"),
}
CODE = """
import importlib.metadata, json, sys

enough = {*json.loads(sys.argv[2]), *sys.stdlib_module_names, "implicitq"}
for name in importlib.metadata.packages_distributions():
    if name not in enough and not name.startswith("_"):
        sys.modules[name] = None  # as if it were not installed

import implicitq
import numpy as np

folder = sys.argv[1]
for name, size in json.loads(sys.argv[3]).items():
    agent = implicitq.load(f"{folder}/{name}")
    rows = np.zeros((2, size), np.float32)
    action, _ = agent.predict(rows, deterministic=True)
    agent.save(f"{folder}/again")
agent.value(rows), agent.q_value(rows, action), agent.evaluate(1)
"""


def test_loading_and_predicting_import_nothing_but_what_they_need(tmp_path, small):
    sizes = {}
    for algorithm, task, size in (("miq", "Pendulum-v1", 3), ("sac", "Pendulum-v1", 3), ("dqn", "CartPole-v1", 4)):
        settings = {name: value for name, value in small.items() if name != "bins" or algorithm == "miq"}
        with implicitq.make(algorithm, task, **settings) as agent:
            agent.save(tmp_path / algorithm)
        sizes[algorithm] = size
    done = alone(ENOUGH, str(tmp_path), sizes)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["jax", "safetensors"])
def test_less_is_not_enough(package, tmp_path):
    done = alone(ENOUGH - {package}, str(tmp_path), {"none": 1})
    assert done.returncode != 0
    assert f"import of {package}" in done.stderr


def alone(enough: set[str], folder: str, sizes: dict[str, int]) -> subprocess.CompletedProcess[str]:
    """A fresh process in which no other packages can be imported."""
    words = [sys.executable, "-c", CODE, folder, json.dumps(sorted(enough)), json.dumps(sizes)]
    return subprocess.run(words, capture_output=True, text=True, check=False)
