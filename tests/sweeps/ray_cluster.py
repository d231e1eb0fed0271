"""Ray clusters on this machine with a sweep that does not come through at the first go.

python ray_cluster.py stopped SUITE.toml OUT: one node, and Ctrl-C; then the same command again. Prints exit codes and
what the stopped run said, as JSON.
python ray_cluster.py loss SUITE.toml OUT: three nodes, one of which is killed in the middle. Prints which checkpoints
the lost node had written, as JSON.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from implicitq.commands import main as cli

_PATIENCE = 120


def stopped(suite: str, out: Path) -> int:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    command = [sys.executable, "-m", "implicitq.commands.main", *_words(suite, out, cluster)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _wait_for_checkpoints(out, 1)
    first.send_signal(signal.SIGINT)
    code = first.wait(_PATIENCE)
    (log,) = (path.read_text() for path in out.glob("logs/*.log"))
    again = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    (later,) = (path.read_text() for path in out.glob("logs/*.log"))
    cluster.shutdown()
    print(json.dumps({"stopped": code, "log": log, "again": again, "later": later}))
    return 0


def loss(suite: str, out: Path) -> int:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)]
    cluster.wait_for_nodes()
    told: dict[str, int] = {}
    killer = threading.Thread(target=_kill_one, args=(cluster, nodes[0], out, told))
    killer.start()
    code = cli.run(_words(suite, out, cluster))
    killer.join()
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps({"checkpoints_at_loss": told}))
    return code


def _words(suite: str, out: Path, cluster: Cluster) -> list[str]:
    words = ["sweep", "--suite", suite, "--seeds", "1", "--out", str(out), "--no-random-scores"]
    return [*words, "--on", "ray", "--address", cluster.address]


def _kill_one(cluster: Cluster, node: object, out: Path, told: dict[str, int]) -> None:
    """Wait until both nodes work and have checkpoints, then kill one of them without a warning."""
    _wait_for_checkpoints(out, 2)
    told.update(_checkpoints(out))
    cluster.remove_node(node, allow_graceful=False)


def _wait_for_checkpoints(out: Path, runs: int) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and len(_checkpoints(out)) < runs:
        time.sleep(0.05)


def _checkpoints(out: Path) -> dict[str, int]:
    """The newest checkpoint of every run that has one."""
    found: dict[str, int] = {}
    for path in out.glob("*/*/*/checkpoints/*.json"):
        folder = str(path.parent.parent.relative_to(out))
        found[folder] = max(found.get(folder, 0), int(path.stem))
    return found


if __name__ == "__main__":
    sys.exit({"stopped": stopped, "loss": loss}[sys.argv[1]](sys.argv[2], Path(sys.argv[3])))
