"""Suites and studies: which runs they expand to, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from implicitq.sweeps.studies import STUDIES, Study, Variant, expand, study_of
from implicitq.sweeps.suites import SUITES, Suite, action_kind, suite_of
from implicitq.types import InputError

WALKER = Suite("walker", ("Walker2d-v5",))
CHEETAH = Suite("cheetah", ("HalfCheetah-v5",))


def test_the_quick_suite_has_two_tasks_of_either_kind_of_action():
    assert sorted(map(action_kind, SUITES["quick"].tasks)) == ["Box", "Box", "Discrete", "Discrete"]


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


def test_settings_of_a_suite_reach_only_algorithms_that_have_them():
    suite = dataclasses.replace(CHEETAH, settings={"bins": 3})
    plan = expand(STUDIES["main"], suite, 1)
    assert {run.config().bins for run in plan.runs if run.algorithm == "iq"} == {3}  # pyright: ignore
    assert any(run.algorithm == "sac" for run in plan.runs)
