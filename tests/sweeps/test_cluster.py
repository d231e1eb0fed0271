"""Sweeps on a real Ray cluster of several nodes on this machine; skipped where Ray is not installed."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from implicitq.commands import main as cli
from implicitq.runs.layout import read_run
from implicitq.sweeps import cluster, sweep
from implicitq.types import InputError

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_the_extra_is_named(tmp_path, tiny_suite, capsys):
    assert cli.run(["sweep", "--suite", str(tiny_suite), "--out", str(tmp_path / "s"), "--on", "ray"]) == 2
    assert "implicitq[cluster]" in capsys.readouterr().err


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_that_does_not_answer_gives_one_sentence(address):
    with pytest.raises(InputError, match="no Ray cluster answers at"):
        cluster.connect(address)


@needs_ray
def test_an_address_that_listens_but_is_no_cluster_is_given_up_within_30_seconds():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(InputError, match=f"no Ray cluster answers at {address}"):
            cluster.connect(address)
        assert time.monotonic() - start < 30


@needs_ray
def test_a_malformed_address_is_refused():
    with pytest.raises(InputError, match="address must be auto, HOST:PORT"):
        cluster.connect("nowhere")


def test_cores_are_reserved_once(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(tmp_path))
    usable = len(os.sched_getaffinity(0))
    with cluster.reserved_cores(usable) as mine:
        assert len(mine) == usable
        with cluster.reserved_cores(1) as none_left:
            assert none_left == set()
    with cluster.reserved_cores(1) as again:
        assert len(again) == 1


@needs_ray
def test_a_node_killed_in_the_middle_costs_only_the_steps_since_its_checkpoint(tmp_path, long_suite):
    """Two nodes with a processor each; the one that is at work is killed, and the other finishes all runs."""
    out = tmp_path / "sweep"
    told = on_a_cluster("ray_cluster_with_a_loss.py", long_suite, out)
    assert len(told["checkpoints_at_loss"]) == 2
    went_on = []
    for folder, step in told["checkpoints_at_loss"].items():
        assert read_run(out / folder, folder).finished
        log = (out / sweep.LOGS / f"{folder.replace('/', '_')}.log").read_text()
        if "resuming" in log:  # it was on the node that was lost
            went_on.append(folder)
            assert int(log.split("at step ")[1].split(" of")[0].replace(",", "")) >= step > 0
    assert len(went_on) == 1


@needs_ray
def test_a_sweep_stopped_on_a_cluster_saves_a_checkpoint_and_goes_on(tmp_path, suite_file):
    suite = suite_file("one", ["Pendulum-v1"], ["iq"], 3_000, 200)
    told = on_a_cluster("ray_cluster_stopped.py", suite, tmp_path / "sweep")
    assert (told["stopped"], told["again"]) == (130, 0)
    step = told["log"].split("stopped at step ")[1].split(";")[0]
    assert f"at step {step} of 3,000" in told["later"]


def on_a_cluster(script: str, suite: Path, out: Path) -> dict:
    """What a script beside this file tells; in a process of its own, since Ray leaves traces."""
    words = [sys.executable, str(Path(__file__).with_name(script)), str(suite), str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])
