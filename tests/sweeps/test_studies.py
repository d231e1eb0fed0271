"""Suites and studies: which runs they expand to, and what is refused; collecting runs into a study table."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from implicitq.commands import main as cli
from implicitq.reports.reading import gather
from implicitq.reports.report import write_report
from implicitq.runs.study_table import read_metrics, read_table
from implicitq.sweeps import suites, sweep
from implicitq.sweeps.collecting import collect
from implicitq.sweeps.studies import STUDIES, PlannedRun, Study, Variant, expand, study_of
from implicitq.sweeps.suites import SUITES, Suite, action_kind, suite_of
from implicitq.types import InputError
from run_fixtures import VERSIONS, write_run

WALKER = Suite("walker", ("Walker2d-v5",))
CHEETAH = Suite("cheetah", ("HalfCheetah-v5",))


def test_the_quick_suite_has_two_tasks_of_either_kind_of_action():
    assert sorted(map(action_kind, SUITES["quick"].tasks)) == ["Box", "Box", "Discrete", "Discrete"]


def test_every_suite_says_in_the_help_what_it_is():
    assert all(suite.summary for suite in SUITES.values())


def test_best_and_unique_parameters_differ_where_the_paper_has_an_exception():
    plan = expand(STUDIES["main"], WALKER, 1)
    rates = {run.folder: run.config().learning_rate for run in plan.runs}
    assert rates["Walker2d-v5/iq/seed-0"] == 3e-5
    assert rates[plan.lines["iq unique"][0]] == 3e-4
    assert plan.lines["sac"] == plan.lines["sac unique"]  # no exception for SAC: one run serves both


def test_one_run_serves_both_parameters_where_there_is_no_exception():
    plan = expand(STUDIES["main"], CHEETAH, 2)
    assert len(plan.runs) == 3 * 2
    assert plan.lines["iq"] == plan.lines["iq unique"]


def test_unique_parameters_keep_the_size_of_a_small_task():
    plan = expand(STUDIES["main"], Suite("p", ("Pendulum-v1",)), 1)
    assert {run.config().hidden for run in plan.runs} == {(256, 256)}
    assert {run.config().steps for run in plan.runs} == {10_000}


def test_the_temperature_study_keeps_the_entropy_weight_across_alpha():
    plan = expand(STUDIES["temperature"], CHEETAH, 1)
    weights: dict[float, set[float]] = {}
    for run in plan.runs:
        if run.algorithm != "sac":
            config = run.config()
            weight = round((1 - config.alpha) * config.temperature, 9)  # pyright: ignore
            weights.setdefault(config.alpha, set()).add(weight)  # pyright: ignore
    assert weights == {0.0: {0.001, 0.01, 0.1}, 0.9: {0.001, 0.01, 0.1}}


def test_the_bins_study_has_all_counts_and_shares_the_default_with_other_studies():
    plan = expand(STUDIES["bins"], CHEETAH, 1)
    assert {run.config().bins for run in plan.runs if run.algorithm == "iq"} == {3, 5, 7, 11, 15}  # pyright: ignore
    assert "HalfCheetah-v5/iq/seed-0" in plan.lines["iq bins=11"]


def test_every_study_has_sac_to_normalise_by():
    assert all(any(v.algorithm == "sac" for v in study.variants) for study in STUDIES.values())


def test_the_full_ablation_has_the_papers_scale():
    plan = expand(STUDIES["ablation"], SUITES["gym"], 20, 20_000_000)
    assert len(plan.runs) == 880
    assert {run.config().steps for run in plan.runs} == {20_000_000}


def test_algorithms_that_cannot_act_are_left_out_visibly():
    plan = expand(STUDIES["all"], Suite("two", ("CartPole-v1", "Pendulum-v1")), 1)
    assert "sac on CartPole-v1: it is for Box actions, the task has Discrete" in plan.left_out
    assert "dqn on Pendulum-v1: it is for Discrete actions, the task has Box" in plan.left_out
    assert {run.algorithm for run in plan.runs if run.env == "CartPole-v1"} >= {"miq", "dqn", "mdqn"}


def test_runs_come_seed_by_seed():
    seeds = [run.seed for run in expand(STUDIES["main"], CHEETAH, 3).runs]
    assert seeds == sorted(seeds)


def test_a_suite_from_a_file_sets_its_runs(tiny_suite):
    plan = expand(STUDIES["main"], suite_of(str(tiny_suite)), 1)
    assert {run.algorithm for run in plan.runs} == {"iq"}
    assert plan.runs[0].config().hidden == (8,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks = [", "is not a TOML file"),
        ("tasks = []", "tasks must be a list of different names"),
        ('tasks = ["A-v0", "A-v0"]', "tasks must be a list of different names"),
        ('task = ["A-v0"]', "a suite has no 'task'; did you mean 'tasks'"),
        ('tasks = ["A-v0"]\nalgorithms = ["sca"]', "unknown algorithm 'sca'; did you mean 'sac'"),
        ('tasks = ["A-v0"]\n[settings]\nseed = 1', "cannot set seed"),
        ('tasks = ["A-v0"]\n[task_settings.B-v0]\nsteps = 1', "which is not among the tasks"),
        ('tasks = ["A-v0"]\nsettings = 3', "settings must be a table"),
    ],
)
def test_a_bad_suite_file_is_refused_in_one_sentence(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        suite_of(str(path))


def test_unknown_names_list_what_exists(tmp_path):
    with pytest.raises(InputError, match=r"unknown suite 'gmy'; did you mean 'gym'\? known: adroit, .*quick"):
        suite_of("gmy")
    with pytest.raises(InputError, match="unknown study 'mian'; did you mean 'main'"):
        study_of("mian")
    with pytest.raises(InputError, match="cannot be read"):
        suite_of(str(tmp_path / "none.toml"))
    with pytest.raises(InputError, match="unknown environment 'Pendulum-v7'"):
        expand(STUDIES["main"], Suite("x", ("Pendulum-v7",)), 1)
    with pytest.raises(InputError, match="no algorithm has a hyperparameter 'hiden'; did you mean 'hidden'"):
        expand(STUDIES["main"], Suite("x", ("Pendulum-v1",), {"hiden": 8}), 1)
    with pytest.raises(InputError, match="seeds must be"):
        expand(STUDIES["main"], CHEETAH, 0)
    with pytest.raises(InputError, match="no run is left"):
        expand(Study("d", "", (Variant("dqn"),)), CHEETAH, 1)


def test_a_part_of_a_suite_keeps_its_order_and_settings(tmp_path):
    path = tmp_path / "three.toml"
    path.write_text('tasks = ["A-v0", "B-v0", "C-v0"]\n[settings]\nsteps = 7')
    part = suite_of(str(path), ["C-v0", "A-v0"])
    assert part.tasks == ("A-v0", "C-v0")
    assert part.settings == {"steps": 7}
    assert part.name == "three-A-v0-C-v0"  # its plan is kept beside that of the whole
    assert suite_of(str(path), ["C-v0", "B-v0", "A-v0"]) == suite_of(str(path))
    with pytest.raises(InputError, match="suite 'three' has no task 'B-v1'; did you mean 'B-v0'"):
        suite_of(str(path), ["B-v1"])


def test_a_part_of_many_tasks_has_a_name_that_can_be_a_files(tmp_path):
    tasks = [f"AnEnvironmentWithALongName{number}-v0" for number in range(9)]
    (tmp_path / "own.toml").write_text(f"tasks = {json.dumps(tasks)}")
    parts = [suite_of(str(tmp_path / "own.toml"), [*tasks[:number], *tasks[number + 1 :]]) for number in (0, 1)]
    assert all(part.name.startswith("own-8-tasks-") for part in parts)
    assert len({sweep.plan_path(tmp_path, "main", part.name) for part in parts}) == 2


def test_settings_of_a_suite_reach_only_algorithms_that_have_them():
    suite = dataclasses.replace(CHEETAH, settings={"bins": 3})
    plan = expand(STUDIES["main"], suite, 1)
    assert {run.config().bins for run in plan.runs if run.algorithm == "iq"} == {3}  # pyright: ignore
    assert any(run.algorithm == "sac" for run in plan.runs)


# Collecting runs into a study table, and what reports and sweeps make of it.


SUITE = Suite("s", ("Pendulum-v1",), {"hidden": (8, 8), "batch_size": 16})


def tables_of(page: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (page.parent / "tables").iterdir()}


def planned(*variants: Variant, seeds: int = 1, steps: int = 5_000, suite: Suite = SUITE) -> tuple[PlannedRun, ...]:
    return expand(Study("own", "", variants), suite, seeds, steps).runs


def write_foreign(folder: Path, seed: int, **values) -> None:
    folder.mkdir(parents=True)
    config = {"algorithm": "sbx-sac", "env": "Pendulum-v1", "steps": 5_000, "seed": seed, **values}
    (folder / "config.json").write_text(json.dumps(config))
    environments = {name: VERSIONS[name] for name in ("gymnasium", "mujoco")}
    (folder / "versions.json").write_text(json.dumps({**environments, "sbx-rl": "0.28.0"}))
    rows = "".join(f"{step},{step / 100},0.0\n" for step in range(1_000, 5_001, 1_000))
    (folder / "evaluations.csv").write_text("step,mean_return,std_return\n" + rows)


@pytest.mark.usefixtures("undrawn")
def test_the_report_of_a_table_is_that_of_its_runs(finished_sweep, small_plan, tmp_path):
    for run in small_plan.runs:
        shutil.rmtree(finished_sweep / run.folder)
        write_run(finished_sweep, run, 100.0 + run.seed, rate=1.0)
    before = tables_of(write_report(finished_sweep).page)
    assert cli.run(["collect", str(finished_sweep), str(tmp_path / "table")]) == 0
    done = write_report(tmp_path / "table")
    assert (done.runs, done.broken, done.missing) == (18, 0, 0)
    assert "small-boxes-cost.csv" in before
    assert tables_of(done.page) == before


def test_runs_beside_the_planned_ones_keep_their_line(finished_sweep, small_plan, tmp_path):
    extra = expand(Study("own", "", (Variant("iq", {"bins": 3}),)), Suite("s", ("Pendulum-v1",)), 1, 10_000).runs[0]
    write_run(finished_sweep, extra, 50.0)
    before = [list(section.lines) for section in gather(finished_sweep).sections]
    collect(finished_sweep, tmp_path / "table")
    after = gather(tmp_path / "table")
    assert [list(section.lines) for section in after.sections] == before == [["iq", "miq", "sac"], ["iq bins=3"]]


@pytest.mark.usefixtures("undrawn")
def test_a_folder_of_tables_and_runs_is_reported_in_sections(finished_sweep, tmp_path):
    root = tmp_path / "all"
    for name in ("first", "second"):
        collect(finished_sweep, root / name)
    write_run(root, dataclasses.replace(planned(Variant("iq"))[0], folder="alone"), 5.0)
    sections = {section.title: section for section in gather(root).sections}
    assert list(sections) == ["All runs", "first: Study small on suite boxes", "second: Study small on suite boxes"]
    assert sections["second: Study small on suite boxes"].missing == ()
    text = write_report(root).page.read_text()
    assert text.count("Normalised scores over 2 tasks") == 2


@pytest.mark.usefixtures("undrawn")
def test_a_run_in_the_table_that_has_its_folder_still_counts_once(finished_sweep):
    collect(finished_sweep, finished_sweep)
    done = write_report(finished_sweep)
    assert (done.runs, done.missing) == (18, 0)
    again = collect(finished_sweep, finished_sweep)
    assert (len(again.runs), again.new, again.extended) == (18, 0, 0)


def test_lines_are_named_by_what_sets_them_apart_from_the_suite(tmp_path):
    for run in planned(Variant("iq"), Variant("iq", {"bins": 3}), Variant("sac")):
        write_run(tmp_path / "runs", run, 10.0)
    with_suite = collect(tmp_path / "runs", tmp_path / "short", SUITE)
    assert [run.label for run in with_suite.runs] == ["iq", "iq bins=3", "sac"]
    without = collect(tmp_path / "runs", tmp_path / "long")
    assert without.runs[0].label == "iq batch_size=16 hidden=8-8"


def test_a_longer_run_replaces_a_shorter_one(tmp_path):
    (run,) = planned(Variant("iq"))
    write_run(tmp_path / "short", run, 10.0, until=3_000)
    write_run(tmp_path / "long", run, 10.0)
    first = collect(tmp_path / "short", tmp_path / "table")
    assert not first.runs[0].finished
    second = collect(tmp_path / "long", tmp_path / "table")
    assert (len(second.runs), second.new, second.extended) == (1, 0, 1)
    assert read_table(tmp_path / "table")[0].finished
    third = collect(tmp_path / "short", tmp_path / "table")
    assert third.runs[0].finished


def test_the_same_run_with_other_returns_is_refused(tmp_path, capsys):
    (run,) = planned(Variant("iq"))
    write_run(tmp_path / "one", run, 10.0)
    write_run(tmp_path / "other", run, 20.0)
    collect(tmp_path / "one", tmp_path / "table")
    kept = (tmp_path / "table/evaluations.csv").read_bytes()
    assert cli.run(["collect", str(tmp_path / "other"), str(tmp_path / "table")]) == 2
    assert "is there twice, with different returns" in capsys.readouterr().err
    assert (tmp_path / "table/evaluations.csv").read_bytes() == kept


def test_different_settings_cannot_have_one_name(tmp_path):
    other = dataclasses.replace(SUITE, settings={"hidden": (4,), "batch_size": 16})
    write_run(tmp_path / "one", planned(Variant("iq"))[0], 10.0)
    write_run(tmp_path / "two", planned(Variant("iq"), suite=other)[0], 10.0)
    collect(tmp_path / "one", tmp_path / "table", SUITE)
    with pytest.raises(InputError, match=r"two different runs would be called iq on Pendulum-v1, seed 0: hidden"):
        collect(tmp_path / "two", tmp_path / "table", other)


def test_new_seeds_join_the_line_of_their_settings(tmp_path):
    first, second = planned(Variant("iq"), seeds=2)
    write_run(tmp_path / "first", first, 10.0)
    write_run(tmp_path / "second", second, 10.0)
    collect(tmp_path / "first", tmp_path / "table", SUITE)
    done = collect(tmp_path / "second", tmp_path / "table")  # without the suite it would have a longer name
    assert [(run.label, run.config.seed) for run in done.runs] == [("iq", 0), ("iq", 1)]


def test_metrics_are_kept_at_the_evaluations_in_six_digits(tmp_path):
    (run,) = planned(Variant("iq"))
    folder = write_run(tmp_path / "runs", run, 10.0)
    rows = [f"{step},{step // 200},{step},{np.pi * step},nan" for step in range(500, 5_001, 500)]
    (folder / "metrics.csv").write_text("\n".join(["step,episodes,updates,value,loss", *rows, "5500,1"]))
    collect(tmp_path / "runs", tmp_path / "table", SUITE)
    text = (tmp_path / "table/metrics.csv").read_text().splitlines()
    assert text[:2] == ["algo,env,seed,step,episodes,updates,value,loss", "iq,Pendulum-v1,0,1000,5,1000,3141.59,nan"]
    assert len(text) == 6
    kept = read_metrics(tmp_path / "table")
    shutil.rmtree(tmp_path / "runs")
    write_run(tmp_path / "more", planned(Variant("sac"))[0], 10.0)
    collect(tmp_path / "more", tmp_path / "table", SUITE)
    assert read_metrics(tmp_path / "table") == kept
    collect(tmp_path / "more", tmp_path / "table", SUITE, metrics=False)
    assert not (tmp_path / "table/metrics.csv").exists()


@pytest.mark.usefixtures("undrawn")
def test_settings_of_a_task_without_a_version_hold_for_the_id_that_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(suites, "_with_version", lambda task: f"implicitq/{task}-v1" if "-v" not in task else task)
    path = tmp_path / "adroit.toml"
    path.write_text('tasks = ["AdroitHandDoor"]\n[task_settings.AdroitHandDoor]\nlearning_rate = 1e-5\n')
    suite = suite_of(str(path))
    assert suite.settings_on("implicitq/AdroitHandDoor-v1") == {"learning_rate": 1e-5}


def test_runs_of_another_library_are_collected_and_reported_beside_ours(tmp_path, capsys):
    for run in planned(Variant("sac"), Variant("iq"), seeds=2):
        write_run(tmp_path / "runs", run, 40.0)
    for seed in range(2):
        write_foreign(tmp_path / f"runs/sbx-{seed}", seed)
    entry = {"mean": 0.0, "std": 1.0, "episodes": 1, "versions": {"gymnasium": "1.4.0", "mujoco": "4.0.0"}}
    (tmp_path / "runs/random-scores.json").write_text(json.dumps({"Pendulum-v1": entry}))
    collect(tmp_path / "runs", tmp_path / "table", SUITE)
    found = gather(tmp_path / "table")
    (section,) = found.sections
    assert list(section.lines) == ["iq", "sac", "sbx-sac"]
    assert found.foreign_versions == {"sbx-sac": {"gymnasium": "1.4.0", "mujoco": "4.0.0", "sbx-rl": "0.28.0"}}
    page = write_report(tmp_path / "table").page
    assert "Versions of sbx-sac" in page.read_text()
    assert "sbx-sac" in (page.parent / "tables/runs-aggregates.csv").read_text()
    write_foreign(tmp_path / "bigger", 3, net_arch=[512])
    assert cli.run(["collect", str(tmp_path / "bigger"), str(tmp_path / "table")]) == 2
    assert "two different runs would be called sbx-sac on Pendulum-v1, seed 3" in capsys.readouterr().err


def test_runs_of_another_library_with_other_environments_are_not_mixed_in(tmp_path):
    write_run(tmp_path, planned(Variant("sac"))[0], 40.0)
    write_foreign(tmp_path / "sbx", 0)
    assert len(gather(tmp_path).runs) == 2
    (tmp_path / "sbx/versions.json").write_text(json.dumps({"gymnasium": "0.1", "mujoco": "4.0.0"}))
    with pytest.raises(InputError, match="mixes runs of several versions"):
        gather(tmp_path)


def test_a_broken_run_is_left_out_and_named(finished_sweep, small_plan, tmp_path, capsys):
    (finished_sweep / small_plan.runs[0].folder / "config.json").write_text("{")
    assert cli.run(["collect", str(finished_sweep), str(tmp_path / "table")]) == 0
    said = capsys.readouterr().out
    assert f"left out: {small_plan.runs[0].folder}: config.json cannot be read" in said
    assert "17 runs of 3 lines, 17 of them new" in said


def test_nothing_to_collect_is_said(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert cli.run(["collect", str(tmp_path / "empty"), str(tmp_path / "table")]) == 2
    assert "empty holds no run with an evaluation" in capsys.readouterr().err
    assert not (tmp_path / "table").exists()


def sweep_words(suite: Path, out: Path, *more: str) -> list[str]:
    words = ["sweep", "--suite", str(suite), "--out", str(out), "--workers", "1", "--no-random-scores"]
    return [*words, "--rate", "1", *more]


def test_a_sweep_goes_on_from_a_table(tmp_path, tiny_suite, monkeypatch, capsys):
    """Runs that the table holds are not made again; with more seeds or steps the others are."""
    out = tmp_path / "study"
    assert cli.run(sweep_words(tiny_suite, out, "--seeds", "1")) == 0
    assert cli.run(["collect", str(out), str(out)]) == 0
    shutil.rmtree(out / "Pendulum-v1")
    capsys.readouterr()
    monkeypatch.setattr(sweep, "worker_command", lambda *_: pytest.fail("a worker was started"))
    assert cli.run(sweep_words(tiny_suite, out, "--seeds", "1")) == 0
    assert "1 run, 1 of them finished already" in capsys.readouterr().out
    assert gather(out).sections[0].missing == ()
    for more, todo in ((["--seeds", "3"], "2 runs to do of 3"), (["--steps", "160"], "5 runs to do of 5")):
        assert cli.run(sweep_words(tiny_suite, out, "--dry-run", *more)) == 0
        assert todo in capsys.readouterr().out


def test_a_sweep_knows_the_runs_of_a_table_under_any_name(small_plan, tmp_path):
    for run in small_plan.runs:
        write_run(tmp_path / "runs", run, 10.0)
    collect(tmp_path / "runs", tmp_path / "table")
    for name in ("about.json", "evaluations.csv"):
        path = tmp_path / "table" / name
        path.write_text(path.read_text().replace('"miq": {', '"my miq": {').replace("\nmiq,", "\nmy miq,"))
        path.write_text(path.read_text().replace('{"algo": "miq"', '{"algo": "my miq"'))
    known = sweep.finished_in_table(tmp_path / "table", small_plan.runs)
    assert len(known) == 18
    assert known["Pendulum-v1/miq/seed-0"] == "Pendulum-v1/my-miq/seed-0"
    sweep.save_plan(tmp_path / "table", small_plan, [], known)
    (section,) = gather(tmp_path / "table").sections
    assert section.missing == ()
    assert list(section.lines) == ["iq", "miq", "sac"]


def test_a_table_with_other_settings_or_a_broken_one_stops_a_sweep(tmp_path, tiny_suite, capsys):
    out = tmp_path / "study"
    write_run(tmp_path / "runs", planned(Variant("iq"))[0], 10.0)
    collect(tmp_path / "runs", out, SUITE)
    assert cli.run(sweep_words(tiny_suite, out, "--seeds", "1")) == 2
    assert "has Pendulum-v1/iq/seed-0 with other settings" in capsys.readouterr().err
    (out / "about.json").unlink()
    assert cli.run(sweep_words(tiny_suite, out, "--seeds", "1")) == 2
    assert f"the study table in {out} is broken: it has no about.json" in capsys.readouterr().err
    assert cli.run(["collect", str(tmp_path / "runs"), str(out)]) == 2
    assert f"the study table in {out} is broken: it has no about.json" in capsys.readouterr().err
