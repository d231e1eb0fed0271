"""A Ray cluster of three nodes on this machine, a sweep on it, and a node that is killed in the middle.

python ray_cluster_with_a_loss.py SUITE.toml OUT: prints which checkpoints the lost node had written, as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from implicitq.commands import main as cli

_PATIENCE = 120


def main(suite: str, out: Path) -> int:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)]
    cluster.wait_for_nodes()
    told: dict[str, int] = {}
    killer = threading.Thread(target=_kill_one, args=(cluster, nodes[0], out, told))
    killer.start()
    words = ["sweep", "--suite", suite, "--seeds", "1", "--out", str(out), "--on", "ray", "--no-random-scores"]
    code = cli.run([*words, "--address", cluster.address])
    killer.join()
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps({"checkpoints_at_loss": told}))
    return code


def _kill_one(cluster: Cluster, node: object, out: Path, told: dict[str, int]) -> None:
    """Wait until both nodes work and have checkpoints, then kill one of them without a warning."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and len(_checkpoints(out)) < 2:
        time.sleep(0.05)
    told.update(_checkpoints(out))
    cluster.remove_node(node, allow_graceful=False)


def _checkpoints(out: Path) -> dict[str, int]:
    """The newest checkpoint of every run that has one."""
    found: dict[str, int] = {}
    for path in out.glob("*/*/*/checkpoints/*.json"):
        folder = str(path.parent.parent.relative_to(out))
        found[folder] = max(found.get(folder, 0), int(path.stem))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
