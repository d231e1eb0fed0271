"""The worker of a sweep: it makes a run or goes on with it, and says what is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import implicitq
from implicitq.commands import main as cli
from implicitq.configs import resolve, to_json
from implicitq.runs.layout import read_config, read_run
from implicitq.sweeps import cluster, sweep, worker
from implicitq.sweeps.studies import PlannedRun
from implicitq.types import InputError
from toys import SMALL


def planned(**values) -> PlannedRun:
    return PlannedRun("iq", "toys:Toy-v0", 0, "toy", {**SMALL, **values})


def work(out: Path, run: PlannedRun, inexact: bool = False) -> int:
    """In this process, with the order that the process would get."""
    *_, order = sweep.worker_command(out, run, inexact)
    return worker.work(**json.loads(order))


def test_a_run_is_made_and_gone_on_with_beyond_its_planned_end(tmp_path, capsys):
    run = planned(steps=80)
    assert work(tmp_path, run) == 0
    assert sweep.is_finished(tmp_path, run)
    assert read_config(tmp_path / "toy") == run.config()
    longer = planned(steps=120)
    assert work(tmp_path, longer) == 0
    assert f"resuming {tmp_path / 'toy'} at step 80 of 120" in capsys.readouterr().out
    assert read_config(tmp_path / "toy") == longer.config()
    assert sweep.is_finished(tmp_path, longer)


def test_a_longer_run_than_is_planned_now_keeps_its_own_end(tmp_path):
    agent = implicitq.make("iq", "toys:Toy-v0", **SMALL)
    agent.learn(40, out=tmp_path / "toy").close()
    assert work(tmp_path, planned(steps=80)) == 0
    assert read_run(tmp_path / "toy", "toy").steps[-1] == SMALL["steps"]


def test_a_run_at_its_last_step_is_refused_instead_of_counted_as_done(tmp_path):
    assert work(tmp_path, planned()) == 0
    with pytest.raises(InputError, match="is at its last step, 120, but its files do not show a finished run"):
        work(tmp_path, planned())


def test_other_conditions_need_inexact(tmp_path):
    assert work(tmp_path, planned(steps=80)) == 0
    path = tmp_path / "toy" / "versions.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "threads": 96}))
    with pytest.raises(InputError, match="began under other conditions"):
        work(tmp_path, planned(steps=120))
    assert work(tmp_path, planned(steps=120), inexact=True) == 0


def start(folder: Path, config: dict) -> subprocess.Popen[str]:
    order = {"folder": str(folder), "config": config, "inexact": False}
    command = [sys.executable, "-m", "implicitq.sweeps.worker", str(os.getpid()), json.dumps(order)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_bad_input_is_one_sentence_with_exit_code_2_and_no_folder(tmp_path):
    process = start(tmp_path / "run", {**to_json(resolve("iq", "Pendulum-v1")), "env": "Pendulum-v7"})
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (2, "")
    assert errors.startswith("error: ")
    assert "Pendulum" in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_it_stops_with_a_checkpoint_when_told_to(tmp_path, workers_see_toys):
    process = start(tmp_path / "run", to_json(planned(steps=100_000).config()))
    end = time.monotonic() + 90
    while not list(tmp_path.glob("run/checkpoints/*.json")) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, errors
    step = max(int(path.stem) for path in (tmp_path / "run/checkpoints").glob("*.json"))
    assert f"stopped at step {step:,}; a checkpoint is saved" in output


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
    told = on_a_cluster("loss", long_suite, out)
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
    told = on_a_cluster("stopped", suite, tmp_path / "sweep")
    assert (told["stopped"], told["again"]) == (130, 0)
    step = told["log"].split("stopped at step ")[1].split(";")[0]
    assert f"at step {step} of 3,000" in told["later"]


def on_a_cluster(story: str, suite: Path, out: Path) -> dict:
    """What ray_cluster.py beside this file tells; in a process of its own, since Ray leaves traces."""
    words = [sys.executable, str(Path(__file__).with_name("ray_cluster.py")), story, str(suite), str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])
