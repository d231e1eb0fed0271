"""The worker of a sweep: it makes a run or goes on with it, and says what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import implicitq
from implicitq.configs import resolve, to_json
from implicitq.runs.layout import read_config, read_run
from implicitq.sweeps import sweep, worker
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
