"""A Ray cluster of one node, and a sweep on it that is stopped by Ctrl-C and started again.

python ray_cluster_stopped.py SUITE.toml OUT: prints exit codes and what the stopped run said, as JSON.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from ray.cluster_utils import Cluster

_PATIENCE = 120


def main(suite: str, out: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    words = ["sweep", "--suite", suite, "--seeds", "1", "--out", str(out), "--no-random-scores"]
    command = [sys.executable, "-m", "implicitq.commands.main", *words, "--on", "ray", "--address", cluster.address]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and not list(out.glob("*/*/*/checkpoints/*.json")):
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    stopped = first.wait(_PATIENCE)
    (log,) = (path.read_text() for path in out.glob("logs/*.log"))
    again = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    (later,) = (path.read_text() for path in out.glob("logs/*.log"))
    cluster.shutdown()
    print(json.dumps({"stopped": stopped, "log": log, "again": again, "later": later}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
