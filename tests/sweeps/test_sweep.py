"""Sweeps on one machine: stopping, killing, going on, crashing, and never repeating what is finished."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from implicitq import evaluate
from implicitq.commands import main as cli
from implicitq.runs.layout import Progress, progress_of, read_config
from implicitq.sweeps import pool, random_scores, sweep
from implicitq.sweeps.display import Live, duration
from implicitq.sweeps.studies import STUDIES, Study, Variant, expand
from implicitq.sweeps.suites import Suite, suite_of
from implicitq.types import InputError
from sweep_fixtures import write_run

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


def test_a_worker_stops_with_a_checkpoint_when_the_sweep_is_killed(tmp_path, stoppable):
    out = tmp_path / "sweep"
    process = subprocess.Popen(
        [sys.executable, "-m", "implicitq.commands.main", *sweep_words(stoppable, out)], stdout=subprocess.DEVNULL
    )
    first = out / "Pendulum-v1/iq/seed-0"
    wait_for(lambda: list(first.glob("checkpoints/*.json")))
    process.kill()
    process.wait()
    log = next((out / sweep.LOGS).glob("*.log"))
    wait_for(lambda: "stopped at step" in log.read_text() or "finished at step" in log.read_text(), 30)


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
    assert cli.run(sweep.train_command(run, tmp_path / "r")) == 0
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
    (folder / "metrics.csv").write_text("step,episodes,updates,episode_return,loss\n4000,1,1,12.25,0\n5000,1,1,nan,0\n")
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
