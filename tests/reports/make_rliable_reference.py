"""Prints what rliable gives for fixed matrices, as JSON: the reference of test_statistics.py.

python -m venv other && other/bin/pip install rliable 'pandas<3'
other/bin/python tests/experiments/make_rliable_reference.py > tests/experiments/rliable_reference.json
"""

from __future__ import annotations

import importlib.metadata
import json

import numpy as np
from rliable import library, metrics

generator = np.random.default_rng(7)
x = generator.normal(0.9, 0.3, (10, 5)) + np.array([0.0, 0.2, -0.3, 0.5, 0.1])
y = generator.normal(1.0, 0.2, (8, 5))
thresholds = np.linspace(0, 2, 9)


def all_aggregates(scores: np.ndarray) -> np.ndarray:
    return np.array([metrics.aggregate_iqm(scores), metrics.aggregate_mean(scores), metrics.aggregate_median(scores)])


def improvement(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.array([metrics.probability_of_improvement(first, second)])


np.random.seed(0)  # noqa: NPY002  rliable resamples from the global generator
points, bounds = library.get_interval_estimates({"x": x, "y": y}, all_aggregates, reps=20_000)
pairs, pair_bounds = library.get_interval_estimates({"x,y": (x, y)}, improvement, reps=2_000)
profiles, _ = library.create_performance_profile({"x": x, "y": y}, thresholds, reps=10)
print(
    json.dumps(
        {
            "rliable": importlib.metadata.version("rliable"),
            "x": x.tolist(),
            "y": y.tolist(),
            "order": ["IQM", "mean", "median"],
            "aggregates": {name: values.tolist() for name, values in points.items()},
            "intervals": {name: values.tolist() for name, values in bounds.items()},  # lower, upper
            "improvement": {"value": pairs["x,y"].tolist(), "interval": pair_bounds["x,y"].tolist()},
            "thresholds": thresholds.tolist(),
            "profiles": {name: values.tolist() for name, values in profiles.items()},
        },
        indent=1,
    )
)
