"""Speed and size of the theory package; value iteration beside that of QuantEcon in the same process.

    python benchmarks/theory/benchmark.py                # writes benchmarks/theory/results.json
    python benchmarks/theory/benchmark.py --part seeds   # one part alone, printed

Parts: `seeds` (50 noise seeds x 500 iterations of IQ-DP on Garnet(1000, 10, 10)), `million` (a sparse grid
world and a sparse Garnet with 1,000,000 states and 4 actions), `quantecon` (value iteration of `DiscreteDP`
and ours, equal tolerance, runs interleaved). Each part runs in a process of its own, so that peak memory is
its own. QuantEcon is not a dependency of the project: without it that part is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np

from implicitq.theory import (
    FiniteMDP,
    GaussianNoise,
    SampledTransitions,
    garnet,
    grid_world,
    iq_dp,
    iterate_to_optimum,
)

SEED = 0
STEPS = 20  # of IQ-DP on the large MDPs


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts KiB


def clock(action) -> tuple[float, float]:
    """(elapsed seconds, processor seconds); the second does not depend on what else the machine does."""
    start, used = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - start, time.process_time() - used


def seeds() -> dict:
    mdp = garnet(1000, 10, 10, discount=0.99, seed=SEED)
    settings = {"alpha": 0.9, "temperature": 0.1, "iterations": 500, "seeds": 50, "keep": "last"}
    found = {"what": "50 seeds x 500 iterations of IQ-DP(0.9, 0.1) on Garnet(1000, 10, 10), discount 0.99"}
    for name, errors in {
        "Gaussian noise": GaussianNoise(0.1),
        "sampled transitions": SampledTransitions(1),
    }.items():
        elapsed, used = clock(lambda errors=errors: iq_dp(mdp, errors=errors, **settings))
        found[name] = {"seconds": elapsed, "processor seconds": used}
    return {**found, "limit, seconds": 30}


def million() -> dict:
    found = {"what": "1,000,000 states, 4 actions, discount 0.95, one process"}
    for name, make in {
        "grid world 1000 x 1000": lambda: grid_world(1000, 1000, discount=0.95),
        "Garnet(1000000, 4, 4)": lambda: garnet(1_000_000, 4, 4, discount=0.95, seed=SEED),
    }.items():
        kept = {}
        built = clock(lambda make=make, kept=kept: kept.update(mdp=make()))
        solved = clock(lambda kept=kept: kept.update(solution=iterate_to_optimum(kept["mdp"], tolerance=1e-6)))
        traced = clock(lambda kept=kept: iq_dp(kept["mdp"], alpha=0.9, temperature=0.1, iterations=STEPS, keep="last"))
        found[name] = {
            "seconds to build": built[0],
            "seconds to solve to 1e-6": solved[0],
            "processor seconds to solve": solved[1],
            "sweeps": kept["solution"].sweeps,
            "guaranteed error": kept["solution"].error,
            "seconds per IQ-DP iteration": traced[0] / STEPS,
            "processor seconds per IQ-DP iteration": traced[1] / STEPS,
        }
    found["peak GiB"] = peak_gib()
    found["limit, GiB"] = 4
    return found


def quantecon() -> dict:
    from quantecon.markov import DiscreteDP

    cases = {
        "dense Garnet(200, 5, 150)": garnet(200, 5, 150, discount=0.95, seed=SEED),
        "sparse Garnet(1000, 10, 10)": garnet(1000, 10, 10, discount=0.95, seed=SEED),
        "sparse Garnet(20000, 5, 5)": garnet(20_000, 5, 5, discount=0.95, seed=SEED),
        "sparse grid world 100 x 100": grid_world(100, 100, discount=0.95),
        "sparse grid world 100 x 100, discount 0.99": grid_world(100, 100, discount=0.99),
    }
    what = "value iteration to a value within 1e-6 of the optimum; medians of 5 interleaved runs"
    return {"what": what, "cases": [side_by_side(DiscreteDP, name, mdp) for name, mdp in cases.items()]}


def side_by_side(DiscreteDP, name: str, mdp: FiniteMDP, tolerance: float = 1e-6) -> dict:
    theirs = discrete_dp(DiscreteDP, mdp)

    def other():
        # their epsilon bounds the policy: they stop at |change| < epsilon (1 - gamma) / (2 gamma),
        # which leaves the
        # value within epsilon / 2 of the optimum
        return theirs.solve(method="value_iteration", epsilon=2 * tolerance, max_iter=100_000)

    def ours():
        return iterate_to_optimum(mdp, tolerance=tolerance)

    reference = iterate_to_optimum(mdp, tolerance=1e-11).value
    first, second = other(), ours()  # also compiles QuantEcon's loops, outside of the clock
    times = np.median([(*clock(other), *clock(ours)) for _ in range(5)], axis=0)
    return {
        "case": name,
        "quantecon, seconds": times[0],
        "ours, seconds": times[2],
        "quantecon, processor seconds": times[1],
        "ours, processor seconds": times[3],
        "quantecon / ours, processor seconds": times[1] / times[3],
        "quantecon, sweeps": int(first.num_iter),
        "ours, sweeps": second.sweeps,
        "quantecon, processor ms per sweep": 1e3 * times[1] / first.num_iter,
        "ours, processor ms per sweep": 1e3 * times[3] / second.sweeps,
        "quantecon, error": float(np.abs(first.v - reference).max()),
        "ours, error": float(np.abs(second.value - reference).max()),
    }


def discrete_dp(DiscreteDP, mdp: FiniteMDP):
    """The same table in QuantEcon's form: product form if dense, state-action pairs if sparse."""
    if not mdp.is_sparse:
        return DiscreteDP(mdp.r, mdp.P, mdp.discount)
    import scipy.sparse as sparse

    pairs = np.divmod(np.arange(mdp.states * mdp.actions), mdp.actions)
    rows = sparse.csr_matrix((mdp.rows.data, mdp.rows.indices, mdp.rows.indptr), shape=mdp.rows.shape)
    return DiscreteDP(mdp.r.ravel(), rows, mdp.discount, pairs[0], pairs[1])


PARTS = {"seeds": seeds, "million": million, "quantecon": quantecon}


def version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def machine() -> dict:
    names = ("numpy", "scipy", "quantecon", "numba")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return {
        "processor": model[0] if model else platform.processor(),
        "cores": os.cpu_count(),
        "cores used": len(os.sched_getaffinity(0)),
        "load average at the start": os.getloadavg()[0],
        "python": platform.python_version(),
        "seed": SEED,
        **{name: version(name) for name in names},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    if options.part:
        print(json.dumps(PARTS[options.part](), indent=2))
        return
    results = {"machine": machine()}
    for part in PARTS:
        if part == "quantecon" and version("quantecon") is None:
            continue
        done = subprocess.run([sys.executable, __file__, "--part", part], check=True, capture_output=True, text=True)
        results[part] = json.loads(done.stdout, parse_float=lambda text: float(f"{float(text):.4g}"))
        print(part, json.dumps(results[part], indent=2))
    options.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
