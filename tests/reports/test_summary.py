"""The head of a report, the names of its lines, and what runs tell of themselves while training."""

from __future__ import annotations

import csv
import itertools
import json

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from scipy import stats

from implicitq.commands import main as cli
from implicitq.reports import figures, statistics
from implicitq.reports.labels import in_words
from implicitq.reports.reading import gather
from implicitq.reports.report import write_report
from implicitq.reports.scores import score_study
from implicitq.reports.signals import Signals
from implicitq.reports.summary import leader, missing
from implicitq.sweeps import sweep
from implicitq.sweeps.collecting import collect
from implicitq.sweeps.studies import Study, Variant, expand
from implicitq.sweeps.suites import Suite
from sweep_fixtures import write_run

METRICS = "step,loss,value,entropy_per_dimension,plausible_value\n"


def made(root, *variants, seeds=1, levels=(10.0,), tasks=("Pendulum-v1",), steps=5_000):
    """Run folders of these lines; the level of a line is the next of `levels`."""
    plan = expand(Study("made", "", variants), Suite("few", tasks), seeds, steps)
    level = dict(zip((variant.algorithm for variant in variants), itertools.cycle(levels), strict=False))
    return plan, {run.folder: write_run(root, run, level[run.algorithm]) for run in plan.runs}


def scores_of(root):
    (section,) = gather(root).sections
    return section, score_study("s", section.lines, section.random, None, section.same)


@pytest.mark.usefixtures("undrawn")
def test_one_seed_has_no_spread_in_any_table(tmp_path):
    made(tmp_path, Variant("iq"))
    page = write_report(tmp_path).page
    text = page.read_text()
    assert "± 0.0" not in text
    assert "a single seed has no spread" in text
    with open(page.parent / "tables/runs-returns.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["std_over_seeds"] == ""
    assert f"{float(row['mean_return']):,.1f} (1)" in (page.parent / "tables/runs-returns.md").read_text()


@pytest.mark.usefixtures("undrawn")
def test_lines_that_are_the_same_runs_are_merged_and_the_page_says_so(tmp_path):
    lines = (Variant("iq"), Variant("iq", {}, "unique"), Variant("iq", {"bins": 11}), Variant("iq", {"bins": 3}))
    plan, folders = made(tmp_path, *lines)
    assert len(folders) == 2
    sweep.save_plan(tmp_path, plan, [])
    section, scores = scores_of(tmp_path)
    assert list(section.lines) == ["iq", "iq bins=3"]
    assert scores.names == {"iq": "iq = iq (unique parameters) = iq (bins 11)", "iq bins=3": "iq (bins 3)"}
    text = write_report(tmp_path).page.read_text()
    assert "merged into one: iq = iq (unique parameters) = iq (bins 11)." in text


def test_lines_that_agree_on_some_tasks_only_stay_two_and_are_drawn_once_there(tmp_path):
    tasks = ("Pendulum-v1", "Walker2d-v5")  # the paper's exception is for the second
    plan, _ = made(tmp_path, Variant("iq"), Variant("iq", {}, "unique"), tasks=tasks, steps=20_000)
    sweep.save_plan(tmp_path, plan, [])
    section, scores = scores_of(tmp_path)
    assert list(section.lines) == ["iq", "iq unique"]
    together, apart = scores.tasks
    assert [together.by_runs(), apart.by_runs()] == [[["iq", "iq unique"]], [["iq"], ["iq unique"]]]
    assert any("Pendulum-v1: iq and iq (unique parameters) are the same runs" in note for note in scores.notes)
    (label,) = figures.task_curves(scores, together).axes[0].get_legend_handles_labels()[1]
    assert label == "iq = iq (unique parameters), 1 seed"


def test_lines_are_called_by_words_and_what_all_share_is_told_once():
    labels = ["iq hidden=64-64 batch_norm=False", "sac hidden=64-64 actor_average=None", "miq hidden=64-64 unique"]
    names, shared = in_words(labels, {})
    assert list(names.values()) == ["iq (no batch norm)", "sac (no actor average)", "miq (unique parameters)"]
    assert shared == ("hidden 64-64",)
    assert in_words(["iq target_update=0.005"], {})[0] == {"iq target_update=0.005": "iq (target update 0.005)"}
    odd = ["a b=c", "other x_y=1", "iq x"]  # none of ours: as they are
    assert in_words(odd, {})[0] == dict(zip(odd, odd, strict=True))


def test_who_is_ahead_is_told_with_its_uncertainty(tmp_path):
    made(tmp_path, Variant("iq"), Variant("miq"), seeds=3, levels=(100.0, 50.0))
    _, scores = scores_of(tmp_path)
    name, told, sure = leader(scores.tasks[0], scores)
    assert (name, sure) == ("iq", "ahead of miq")
    assert told.endswith("(3 seeds)")
    assert " ± " in told
    one = tmp_path / "one"
    made(one, Variant("iq"), Variant("miq"), levels=(100.0, 50.0))
    _, scores = scores_of(one)
    assert leader(scores.tasks[0], scores)[2].startswith("not known from one seed; next is miq with 5")
    level = tmp_path / "level"
    made(level, Variant("iq"), Variant("miq"), seeds=3, levels=(100.0, 100.0))
    _, scores = scores_of(level)
    assert leader(scores.tasks[0], scores)[2].startswith("not told apart from ")


def test_the_interval_of_a_difference_is_welchs():
    generator = np.random.default_rng(0)
    x, y = generator.normal(1, 1, 3), generator.normal(0, 5, 7)
    theirs = stats.ttest_ind(x, y, equal_var=False).confidence_interval()
    ours = statistics.difference(x, y)
    assert [ours.low, ours.high] == pytest.approx([theirs.low, theirs.high])
    assert np.isnan(statistics.difference(x[:1], y).low)
    assert statistics.difference(np.ones(2), np.zeros(2)) == (1, 1, 1)


def test_without_random_scores_the_exact_command_is_there_and_works(tmp_path, capsys):
    _, folders = made(tmp_path, Variant("iq"))
    section, scores = scores_of(tmp_path)
    (text,) = missing(section, scores)
    command = f"implicitq random-scores {tmp_path} --tasks Pendulum-v1"
    assert text.endswith(f"run: {command}")
    assert cli.run([*command.split()[1:], "--episodes", "1"]) == 0
    for folder in folders.values():  # the versions of the random scores are those that are installed here
        (folder / "versions.json").unlink()
    section, scores = scores_of(tmp_path)
    (text,) = missing(section, scores)
    assert "no finished SAC run" in text


def test_no_command_for_sac_is_given_where_sac_cannot_act(tmp_path):
    made(tmp_path, Variant("dqn"), tasks=("CartPole-v1",))
    entry = {"mean": 0.0, "std": 1.0, "episodes": 1, "versions": {"gymnasium": "1.4.0", "mujoco": "4.0.0"}}
    (tmp_path / "random-scores.json").write_text(json.dumps({"CartPole-v1": entry}))
    (text,) = missing(*scores_of(tmp_path))
    assert "is for Box actions" in text
    assert "implicitq train" not in text


def test_loss_value_and_entropy_are_drawn_and_divergence_is_told(tmp_path):
    _, folders = made(tmp_path, Variant("iq"), seeds=2)
    tame, wild = folders.values()
    (tame / "metrics.csv").write_text(METRICS + "1000,4.0,10.0,0.5,100.0\n2000,2.0,20.0,0.25,100.0\n")
    (wild / "metrics.csv").write_text(METRICS + "1000,8.0,30.0,0.5,100.0\n2000,6.0,9000.0,nan,100.0\n")
    section, _ = scores_of(tmp_path)
    signals = Signals()
    panels = signals.of_task(section.lines, 5_000)
    assert {name: curves["iq"][1].tolist() for name, curves in panels.items()} == {
        "loss": [6.0, 4.0],
        "value": [20.0, 4510.0],
        "entropy per dimension": [0.5, 0.25],
    }
    assert panels["loss"]["iq"][0].tolist() == [1_000, 2_000]
    assert list(signals.diverged) == ["Pendulum-v1/iq/seed-1"]
    collect(tmp_path, tmp_path / "table")
    (wild / "metrics.csv").write_text("nothing\n")
    page = write_report(tmp_path).page
    text = page.read_text()
    assert (page.parent / "figures/runs-Pendulum-v1-training.png").stat().st_size > 1_000
    assert "1 run without loss, value and entropy" in text
    told = "values diverged: 9,000 at step 2,000, where rewards explain at most 100"
    assert f"table/Pendulum-v1/iq/seed-1: {told}" in text  # a table keeps the metrics at evaluations


def test_a_branch_is_called_one(tmp_path):
    _, folders = made(tmp_path, Variant("iq"))
    (folder,) = folders.values()
    branch = [{"step": 1_000, "changes": {"learning_rate": [3e-4, 1e-3]}}]
    (folder / "branches.json").write_text(json.dumps(branch))
    _, scores = scores_of(tmp_path)
    assert list(scores.names.values()) == ["iq (branch)"]


def test_many_lines_never_look_the_same():
    lines = [f"line {number}" for number in range(40)]
    looks = {json.dumps({**figures.style_of(lines, line), "linewidth": 0}) for line in lines}
    assert len(looks) == len(lines)
    first = [figures.style_of(lines, line)["color"] for line in lines[: len(figures.COLOURS)]]
    assert len(set(first)) == len(first) == 7


# Linear RGB as eyes without one kind of cone see it, after Machado, Oliveira and Fernandes 2009.
EYES = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}


@pytest.mark.parametrize("eye", EYES)
def test_colours_differ_for_eyes_that_see_fewer(eye):
    def lab(colour):
        rgb = np.array(to_rgb(colour))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        seen = np.clip(np.array(EYES[eye]) @ linear, 0, 1)
        to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
        x, y, z = np.cbrt(np.maximum(np.array(to_xyz) @ seen / [0.95047, 1.0, 1.08883], 1e-9))
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    seen = [lab(colour) for colour in figures.COLOURS]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 14
