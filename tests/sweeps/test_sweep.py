"""Sweeps: stopping, killing, going on, crashing, never repeating what is finished; the worker that makes their runs."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

import implicitq
from implicitq import configs, evaluate
from implicitq.commands import main as cli
from implicitq.configs import resolve, to_json
from implicitq.runs.layout import Progress, progress_of, read_config, read_run
from implicitq.sweeps import cluster, pool, random_scores, sweep, worker
from implicitq.sweeps.display import Live, duration
from implicitq.sweeps.studies import STUDIES, PlannedRun, Study, Variant, expand
from implicitq.sweeps.suites import Suite, suite_of
from implicitq.types import InputError
from run_fixtures import write_run
from toys import SMALL

# Stands in for a training process: writes what a finished run leaves, or fails as often as told.
FAKE = """
import os, sys, pathlib
folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
tries = folder / "tries"
count = int(tries.read_text()) + 1 if tries.exists() else 1
tries.write_text(str(count))
print("cores", sorted(os.sched_getaffinity(0)))
if count <= FAILURES.get(folder.parent.name, 0):
    print("error: the floor gave way", file=sys.stderr)
    sys.exit(3)
(folder / "config.json").write_text(CONFIGS[folder.parent.name])
(folder / "evaluations.csv").write_text("step,mean_return,std_return\\n10000,1.5,0.0\\n")
"""


def sweep_words(suite: Path, out: Path, *more: str) -> list[str]:
    words = ["sweep", "--suite", str(suite), "--seeds", "1", "--out", str(out), "--workers", "1"]
    return [*words, "--no-random-scores", *more]


def wait_for(condition, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.fixture
def stoppable(suite_file) -> Path:
    return suite_file("stoppable", ["Pendulum-v1"], ["iq"], 3_000, 200)  # too long to end before the signal


@pytest.fixture
def faked(monkeypatch, small_plan):
    """Replaces the training process; takes how often the runs of an algorithm fail."""

    def fake(**failures: int) -> None:
        texts = {
            run.folder.split("/")[1]: json.dumps({"layout": 1, **_as_json(run)})
            for run in small_plan.runs
            if run.env == "Pendulum-v1"
        }
        code = f"CONFIGS = {texts!r}\nFAILURES = {failures!r}\n{FAKE}"
        monkeypatch.setattr(
            sweep, "worker_command", lambda out, run, inexact: [sys.executable, "-c", code, str(out / run.folder)]
        )

    return fake


def _as_json(run) -> dict:
    from implicitq.configs import to_json

    return to_json(run.config())


def pendulum_runs(plan):
    return [run for run in plan.runs if run.env == "Pendulum-v1" and run.seed == 0]


def make_runs(out: Path, runs, workers: int = 1) -> sweep.Outcome:
    with Live(Console(quiet=True), len(runs), 0) as live:
        return pool.run_pool(out, runs, pool.cores(workers), live)


def test_a_sweep_stopped_by_ctrl_c_saves_a_checkpoint_and_goes_on(tmp_path, stoppable, capsys):
    """Then nothing is repeated, even when only the committed files are left."""
    out = tmp_path / "sweep"
    process = subprocess.Popen(
        [sys.executable, "-m", "implicitq.commands.main", *sweep_words(stoppable, out)],
        stdout=subprocess.PIPE,
        text=True,
    )
    first = out / "Pendulum-v1/iq/seed-0"
    wait_for(lambda: list(first.glob("checkpoints/*.json")))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on" in output.lower()
    stopped_at = max(int(path.stem) for path in first.glob("checkpoints/*.json"))
    assert 0 < stopped_at < 3_000

    assert cli.run(sweep_words(stoppable, out)) == 0
    log = next((out / sweep.LOGS).glob("*_iq_seed-0.log")).read_text()
    assert f"resuming {first} at step {stopped_at:,} of 3,000" in log

    for path in out.glob("*/*/seed-0/*"):
        if path.name not in ("config.json", "evaluations.csv"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("evaluations.csv")}
    capsys.readouterr()
    assert cli.run(sweep_words(stoppable, out)) == 0
    assert "1 run, 1 of them finished already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in out.rglob("evaluations.csv")} == before


def test_a_run_that_crashes_goes_on_from_its_checkpoint(tmp_path, suite_file, workers_see_toys):
    """The environment fails at its 75th step, and once more after that."""
    suite = suite_file("breaking", ["toys:Breaks-v0"], ["iq"], 100, 40)
    out = tmp_path / "sweep"
    assert cli.run([*sweep_words(suite, out), "--trust-env"]) == 0
    log = next((out / sweep.LOGS).glob("*.log")).read_text()
    assert "at step 40 of 100" in log


def test_a_worker_stops_with_a_checkpoint_when_the_sweep_is_killed(tmp_path, suite_file):
    out = tmp_path / "sweep"
    words = sweep_words(suite_file("long", ["Pendulum-v1"], ["iq"], 50_000, 200), out)
    process = subprocess.Popen([sys.executable, "-m", "implicitq.commands.main", *words], stdout=subprocess.DEVNULL)
    first = out / "Pendulum-v1/iq/seed-0"
    wait_for(lambda: list(first.glob("checkpoints/*.json")))
    process.kill()
    process.wait()
    log = next((out / sweep.LOGS).glob("*.log"))
    wait_for(lambda: "stopped at step" in log.read_text(), 30)


def test_a_run_that_keeps_crashing_is_reported_and_stops_no_other(tmp_path, small_plan, faked):
    faked(iq=99, miq=2)
    runs = pendulum_runs(small_plan)
    outcome = make_runs(tmp_path, runs)
    assert outcome.finished == 2
    assert [failure.run.algorithm for failure in outcome.failures] == ["iq"]
    assert outcome.failures[0].reason == "the floor gave way (exit code 3)"
    assert (tmp_path / "Pendulum-v1/iq/seed-0/tries").read_text() == str(sweep.ATTEMPTS)
    assert (tmp_path / "Pendulum-v1/miq/seed-0/tries").read_text() == "3"


def test_every_worker_is_pinned_to_one_core(tmp_path, small_plan, faked):
    faked()
    before = os.sched_getaffinity(0)
    make_runs(tmp_path, pendulum_runs(small_plan), workers=2)
    said = {path.read_text().strip() for path in (tmp_path / sweep.LOGS).glob("*.log")}
    assert said <= {f"cores [{core}]" for core in before}
    assert os.sched_getaffinity(0) == before


def test_runs_that_are_cut_short_of_their_last_checkpoint_are_not_finished(tmp_path, small_plan):
    run = small_plan.runs[0]
    folder = write_run(tmp_path, run, 1.0)
    assert sweep.is_finished(tmp_path, run)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints/000005000.json").write_text("{}")
    assert not sweep.is_finished(tmp_path, run)


def test_a_longer_sweep_goes_on_with_the_same_runs(tmp_path, small_plan):
    run = small_plan.runs[0]
    write_run(tmp_path, run, 1.0)
    longer = expand(STUDIES["main"], Suite("boxes", ("Pendulum-v1",)), 1, 20_000).runs[0]
    assert longer.folder == run.folder
    assert not sweep.is_finished(tmp_path, longer)
    sweep.check_folders(tmp_path, [longer])


def test_a_folder_with_a_run_of_other_settings_is_refused(tmp_path, small_plan):
    run = small_plan.runs[0]
    write_run(tmp_path, run, 1.0)
    other = expand(STUDIES["main"], Suite("boxes", ("Pendulum-v1",), {"batch_size": 8}), 1).runs[0]
    with pytest.raises(InputError, match=r"holds a run with other settings .batch_size 256 there, 8 planned"):
        sweep.check_folders(tmp_path, [other])


def test_the_command_of_a_run_parses_back_to_its_config(tmp_path, monkeypatch):
    """Flags for every kind of value: numbers, several numbers, switches, none."""
    suite = Suite("s", ("CartPole-v1",), {"normalize_observations": True, "munchausen_clip": None, "hidden": (8, 4)})
    run = expand(Study("one", "", (Variant("mdqn", {"temperature": 0.5}),)), suite, 1).runs[0]
    seen = []
    monkeypatch.setattr("implicitq.agent.from_config", lambda config, device: seen.append(config))
    monkeypatch.setattr("implicitq.commands.train.learn", lambda *_: 0)
    assert cli.run([*shlex.split(configs.train_command(run.config()))[1:], "--out", str(tmp_path / "r")]) == 0
    assert seen == [run.config()]


def test_a_dry_run_tells_runs_steps_and_time_and_makes_nothing(tmp_path, tiny_suite, capsys):
    out = tmp_path / "sweep"
    words = ["sweep", "--suite", str(tiny_suite), "--seeds", "10", "--out", str(out), "--workers", "2"]
    assert cli.run([*words, "--dry-run", "--rate", "2"]) == 0
    said = capsys.readouterr().out
    assert "10 runs to do of 10, 1,200 environment steps" in said
    assert "expected: 5 min with 2 worker(s); 10 min of one core in all" in said
    assert not out.exists()


def test_rates_come_from_clocks_of_runs_that_exist(tmp_path, small_plan):
    run = small_plan.runs[0]
    folder = write_run(tmp_path, run, 1.0)
    (folder / "timing.csv").write_text("step,wall_seconds,cpu_seconds\n1000,2.0,2.0\n2000,7.0,7.0\n")
    only = expand(Study("one", "", (Variant("iq"),)), Suite("boxes", ("Pendulum-v1",)), 1, 10_000)
    found = sweep.rates(tmp_path, only, None, print)
    assert found["iq"].steps_per_second == pytest.approx(200)
    assert progress_of(folder) == Progress(10_000, 200.0, progress_of(folder).score)
    assert sweep.expected_seconds(list(only.runs), found, 1) == pytest.approx(50)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--study", "mian"], "unknown study 'mian'"),
        (["--suite", "gymm"], "unknown suite 'gymm'"),
        (["--workers", "0"], "workers must be"),
        (["--seeds", "0"], "seeds must be"),
        (["--steps", "0", "--suite", "quick"], "steps must be"),
        (["--dry-run", "--rate", "0"], "rate must be a positive number"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(tmp_path, tiny_suite, capsys, words, message):
    assert cli.run(["sweep", "--suite", str(tiny_suite), "--out", str(tmp_path / "s"), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_random_scores_are_measured_once_and_again_for_other_versions(tmp_path, monkeypatch):
    told: list[str] = []
    first = random_scores.ensure(tmp_path, ["CartPole-v1"], episodes=20, tell=told.append)["CartPole-v1"]
    assert 15 < first["mean"] < 35
    assert first["versions"]["gymnasium"]
    random_scores.ensure(tmp_path, ["CartPole-v1"], episodes=20, tell=told.append)
    assert len(told) == 1
    monkeypatch.setattr(random_scores, "environment_versions", lambda: {"gymnasium": "0"})
    again = random_scores.ensure(tmp_path, ["CartPole-v1"], episodes=20, tell=told.append)["CartPole-v1"]
    assert len(told) == 2
    assert again["mean"] == first["mean"]  # the same seeds, the same actions


def test_random_actions_are_within_the_bounds_of_training(tmp_path):
    class Squares(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (1,))
        action_space = gym.spaces.Box(-np.inf, np.inf, (1,))

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            return np.zeros(1, np.float32), float(-(action[0] ** 2)), False, True, {}

    gym.register("Squares-v0", Squares)
    try:
        found = random_scores.ensure(tmp_path, ["Squares-v0"], bounds={"Squares-v0": 0.1})["Squares-v0"]
        assert found["mean"] == pytest.approx(-(0.1**2) / 3, rel=0.3)
        wider = random_scores.ensure(tmp_path, ["Squares-v0"], bounds={"Squares-v0": 1.0})["Squares-v0"]
        assert wider["mean"] == pytest.approx(-1 / 3, rel=0.3)
    finally:
        del gym.registry["Squares-v0"]


def test_random_scores_that_others_measure_meanwhile_are_kept(tmp_path, monkeypatch):
    entry = {"mean": 1.0, "std": 0.0, "episodes": 1, "versions": random_scores.environment_versions()}

    def measure(task, episodes, action_bound):
        if task == "One-v0":
            random_scores.ensure(tmp_path, ["Other-v0"])
        return entry

    monkeypatch.setattr(random_scores, "measure", measure)
    assert random_scores.ensure(tmp_path, ["One-v0"]) == random_scores.read(tmp_path)
    assert set(random_scores.read(tmp_path)) == {"One-v0", "Other-v0"}


def test_random_scores_of_an_environment_without_an_end_are_refused(monkeypatch):
    monkeypatch.setattr(evaluate, "LONGEST_EPISODE", 3)
    with pytest.raises(InputError, match="an episode has not ended after 3 steps; give the environment a time limit"):
        random_scores.measure("CartPole-v1", episodes=1)


def test_the_random_scores_command_tells_and_stores(tmp_path, suite_file, capsys):
    suite = suite_file("c", ["CartPole-v1"], ["iq"], 100, 50)
    assert cli.run(["random-scores", str(tmp_path / "s"), "--suite", str(suite), "--episodes", "3"]) == 0
    assert "CartPole-v1" in capsys.readouterr().out
    assert random_scores.read(tmp_path / "s")["CartPole-v1"]["episodes"] == 3


def test_the_live_table_shows_runs_and_the_time_left(tmp_path, small_plan):
    run = small_plan.runs[0]
    folder = write_run(tmp_path, run, 1.0, until=5_000)
    (folder / "timing.csv").write_text("step,wall_seconds,cpu_seconds\n1000,10.0,10.0\n5000,50.0,50.0\n")
    (folder / "metrics.csv").write_text("step,loss,episode_return,episodes\n4000,0,12.25,1\n5000,0,nan,1\n")
    for width, name in ((120, run.folder), (80, run.folder[-20:])):
        console = Console(force_terminal=True, width=width, record=True, file=io.StringIO())
        with Live(console, 2, 1) as live:
            live.refresh(tmp_path, [run], [], 1)
            first = console.export_text()
            live.stopping(1)  # a line above the table, which is drawn once more below it
            again = console.export_text()
        for shown in (first, again):
            for text in (name, "50%", "100", "12.2", "50 s", "1 of 2 runs done", "the same command goes on."):
                assert text in shown
            assert max(map(len, shown.splitlines())) <= width


def test_durations_have_two_units_at_most():
    assert [duration(s) for s in (40, 600, 4_000, 300_000)] == ["40 s", "10 min", "1 h 6 min", "3 d 11 h"]


def test_the_plan_of_a_sweep_reads_back(tmp_path, small_plan):
    sweep.save_plan(tmp_path, small_plan, ["--study", "small"])
    (data,) = sweep.read_plans(tmp_path)
    assert data["command"] == "implicitq sweep --study small"
    assert data["lines"]["iq"] == list(small_plan.lines["iq"])
    (tmp_path / "plans/bad.json").write_text("[]")
    with pytest.raises(InputError, match="is not the plan of a sweep"):
        sweep.read_plans(tmp_path)


def test_configs_of_committed_runs_are_read_without_the_rest(tmp_path, small_plan):
    folder = write_run(tmp_path, small_plan.runs[0], 1.0, versions=None)
    assert read_config(folder) == small_plan.runs[0].config()
    assert suite_of("quick").tasks


def test_a_run_whose_config_was_deleted_is_refused_in_a_sentence(tmp_path, tiny_suite, small_plan, capsys):
    folder = write_run(tmp_path / "sweep", small_plan.runs[0], 1.0)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"is broken, remove it to make the run again: it has no config\.json"):
        sweep.check_folders(tmp_path / "sweep", small_plan.runs)


@pytest.mark.parametrize("name", ["plans", "logs", "Pendulum-v1"])
def test_a_sweep_never_writes_through_a_link(tmp_path, tiny_suite, name, capsys):
    out, outside = tmp_path / "sweep", tmp_path / "outside"
    out.mkdir()
    outside.mkdir()
    (out / name).symlink_to(outside)
    assert cli.run(sweep_words(tiny_suite, out)) == 2
    assert f"{name} is a link, which is not followed" in capsys.readouterr().err
    assert not list(outside.iterdir())


def test_a_log_that_is_a_link_is_not_followed(tmp_path, small_plan, faked):
    faked()
    run = pendulum_runs(small_plan)[0]
    (tmp_path / "precious").write_text("precious")
    log = sweep.log_path(tmp_path / "sweep", run)
    log.symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="is a link"):
        make_runs(tmp_path / "sweep", [run])
    assert (tmp_path / "precious").read_text() == "precious"


def test_two_sweeps_in_one_folder_are_refused_in_a_sentence(tmp_path, tiny_suite, capsys):
    out = tmp_path / "sweep"
    with sweep.alone(out):
        assert cli.run(sweep_words(tiny_suite, out)) == 2
    assert "another sweep is running in" in capsys.readouterr().err
    with sweep.alone(out):  # the lock is free again
        pass


# The worker: it makes a run or goes on with it, and says what is wrong.


def planned(**values) -> PlannedRun:
    return PlannedRun("iq", "toys:Toy-v0", 0, "toy", {**SMALL, **values})


def work(out: Path, run: PlannedRun, inexact: bool = False) -> int:
    """In this process, with the order that the process would get."""
    *_, order = sweep.worker_command(out, run, inexact)
    return worker.work(**json.loads(order))


@pytest.mark.parametrize("trusted", [False, True])
def test_a_worker_imports_from_the_working_folder_only_if_the_sweep_does(trusted, tmp_path, monkeypatch):
    (tmp_path / "numbers.py").write_text("raise SystemExit(77)")  # NumPy imports a module of this name
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path] + [str(tmp_path)] * trusted)
    told = subprocess.run(sweep.worker_command(tmp_path, planned(), False)[:-2], capture_output=True, check=False)
    assert (told.returncode == 77) is trusted


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


def test_no_core_is_reserved_through_a_link(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    (tmp_path / f"implicitq-{os.getuid()}-core-0.lock").symlink_to(tmp_path / "elsewhere")
    with cluster.reserved_cores(1) as none:
        assert none == set()
    assert not (tmp_path / "elsewhere").exists()


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
