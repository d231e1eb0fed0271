"""Scores of synthetic runs, of which nothing is dropped silently; the head of a report, and the names of its lines."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from scipy import stats

from implicitq import configs
from implicitq.commands import main as cli
from implicitq.reports import figures, statistics
from implicitq.reports.labels import in_words
from implicitq.reports.reading import gather
from implicitq.reports.report import write_report
from implicitq.reports.scores import align, score_study
from implicitq.reports.signals import Signals
from implicitq.reports.summary import leader, missing
from implicitq.runs.layout import FoundRun, read_curve, read_seconds
from implicitq.sweeps import sweep
from implicitq.sweeps.collecting import collect
from implicitq.sweeps.studies import STUDIES, Study, Variant, expand
from implicitq.sweeps.suites import Suite
from implicitq.types import InputError
from run_fixtures import write_run

RANDOM = {"Pendulum-v1": {"mean": 10.0}, "InvertedPendulum-v5": {"mean": 0.0}}


def found(algorithm: str, seed: int, at, means, env: str = "Pendulum-v1", rate=np.nan, **values) -> FoundRun:
    """`rate`: processor seconds per step; by default there is no clock."""
    config = configs.resolve(algorithm, env, seed=seed, **{"steps": 400, "eval_every": 100, **values})
    name = f"{env}/{algorithm}/{seed}"
    return FoundRun(Path(name), name, config, None, np.array(at), np.array(means, float), rate * np.array(at))


def whole(algorithm: str, seed: int, end: float, env: str = "Pendulum-v1", **values) -> FoundRun:
    return found(algorithm, seed, [100, 200, 300, 400], [0.0, 1.0, 2.0, end], env, **values)


def test_the_score_is_relative_to_random_and_the_mean_of_the_best_sac():
    lines = {
        "iq": [whole("iq", 0, 60.0), whole("iq", 1, 160.0)],
        "sac": [whole("sac", 0, 100.0), whole("sac", 1, 120.0)],
        "sac slow": [whole("sac", 0, 400.0, learning_rate=3e-5), whole("sac", 1, -300.0, learning_rate=3e-5)],
    }
    (task,) = score_study("s", lines, RANDOM).tasks
    assert task.baseline == 110.0  # the best configuration by its mean, not the one with the best seed
    assert task.baseline_line == "sac"
    assert task.problem is None
    np.testing.assert_allclose(task.normalised(task.cells["iq"].final), [0.5, 1.5])


def test_a_branch_of_sac_is_no_measure_of_others():
    best = dataclasses.replace(whole("sac", 0, 400.0, learning_rate=1e-3), branches=("from step 100 with more",))
    lines = {"iq": [whole("iq", 0, 60.0)], "sac": [whole("sac", 0, 110.0)], "sac branch": [best]}
    (task,) = score_study("s", lines, RANDOM).tasks
    assert (task.baseline, task.baseline_line) == (110.0, "sac")


def test_the_rival_of_all_lines_is_the_best_sac_of_each_task():
    ends = {"iq": (60.0, 60.0), "sac": (110.0, 50.0), "sac slow": (50.0, 100.0)}
    lines = {
        line: [
            whole(line.split()[0], 0, end, env, **({"learning_rate": 3e-5} if "slow" in line else {}))
            for env, end in zip(RANDOM, both, strict=True)
        ]
        for line, both in ends.items()
    }
    scores = score_study("s", lines, RANDOM)
    assert [task.baseline_line for task in scores.tasks] == ["sac", "sac slow"]
    np.testing.assert_allclose(scores.best_sac(scores.tasks), [[1.0, 1.0]])
    tasks, matrices = scores.comparable()
    assert statistics.probability_of_improvement(matrices["iq"], scores.best_sac(tasks)) == 0.0


def test_every_evaluation_counts_for_its_nearest_grid_point():
    notes: list[str] = []
    run = found("iq", 0, [104, 204, 300, 401], [1, 2, 3, 4])
    np.testing.assert_array_equal(align(run, np.array([100, 200, 300, 400]), notes)[0], [1, 2, 3, 4])
    assert notes == ["Pendulum-v1/iq/0: 3 evaluations lie beside the grid and count for its nearest point"]


def test_missing_evaluations_stay_missing_and_are_reported():
    notes: list[str] = []
    run = found("iq", 0, [100, 300], [1, 3])
    np.testing.assert_array_equal(align(run, np.array([100, 200, 300, 400]), notes)[0], [1, np.nan, 3, np.nan])
    assert notes == ["Pendulum-v1/iq/0: 2 of 4 evaluations on the grid are missing (it is at step 300 of 400)"]


def test_a_run_just_before_its_end_has_not_reached_it():
    run = found("iq", 0, [100, 200, 300, 399], [1, 2, 3, 4])
    assert np.isnan(align(run, np.array([100, 200, 300, 400]), [])[0][-1])


def test_an_unfinished_run_is_in_the_curve_but_not_in_the_end():
    lines = {"sac": [whole("sac", 0, 100.0), found("sac", 1, [100, 200], [7.0, 7.0])]}
    scores = score_study("s", lines, RANDOM)
    cell = scores.tasks[0].cells["sac"]
    assert cell.seeds == (0, 1)
    assert cell.values.shape == (2, 4)
    assert cell.final.tolist() == [100.0]
    assert any("2 of 4 evaluations" in note for note in scores.notes)


def test_unequal_budgets_and_spacings_are_compared_at_the_least_and_reported():
    lines = {
        "sac": [whole("sac", 0, 100.0)],
        "iq": [found("iq", 0, range(50, 801, 50), range(16), steps=800, eval_every=50)],
    }
    scores = score_study("s", lines, RANDOM)
    assert scores.tasks[0].grid.tolist() == [100, 200, 300, 400]
    assert scores.tasks[0].cells["iq"].final.tolist() == [7.0]
    assert "Pendulum-v1: runs of unequal length (400, 800 steps) are compared at 400" in scores.notes
    assert any("every 50 or 100 steps" in note for note in scores.notes)


def test_an_earlier_budget_can_be_asked_for():
    scores = score_study("s", {"sac": [whole("sac", 0, 100.0)]}, RANDOM, steps=200)
    assert scores.tasks[0].baseline == 1.0


@pytest.mark.parametrize(
    ("lines", "random", "message"),
    [
        ({"iq": [whole("iq", 0, 1.0)]}, RANDOM, "no finished SAC run to normalise by; run: implicitq train sac"),
        ({"sac": [whole("sac", 0, 50.0)]}, {}, "the random policy was not measured"),
        ({"sac": [whole("sac", 0, 5.0)]}, RANDOM, "is not above the random policy"),
    ],
)
def test_a_task_that_cannot_be_normalised_says_what_to_do(lines, random, message):
    scores = score_study("s", lines, random)
    assert message in (scores.tasks[0].problem or "")
    assert scores.comparable() == ((), {})
    with pytest.raises(InputError, match="has no normalised scores"):
        scores.tasks[0].normalised(np.zeros(1))


def test_aggregates_take_lines_with_finished_runs_on_every_scored_task():
    other = "InvertedPendulum-v5"
    lines = {
        "sac": [whole("sac", 0, 110.0), whole("sac", 0, 100.0, other), whole("sac", 1, 100.0, other)],
        "iq": [whole("iq", 0, 60.0)],
    }
    tasks, matrices = score_study("s", lines, RANDOM).comparable()
    assert len(tasks) == 2
    assert list(matrices) == ["sac"]
    np.testing.assert_array_equal(matrices["sac"], [[1.0, 1.0], [np.nan, 1.0]])


def test_scores_at_equal_processor_time_by_hand():
    at = [100, 200, 300, 400]
    lines = {
        "iq": [
            found("iq", 0, at, [10, 20, 30, 60], rate=1.0),
            found("iq", 1, at, [10, 20, 30, 50], rate=1.0),
        ],
        "sac": [
            found("sac", 0, at, [10, 20, 60, 110], rate=2.0),
            found("sac", 1, at, [10, 40, 60, 90], rate=2.0),
        ],
    }
    task = score_study("s", lines, RANDOM).tasks[0]
    iq, sac = task.standing("iq"), task.standing("sac")
    assert iq is not None
    assert sac is not None
    assert (iq.seeds, iq.mean_return, iq.cpu_seconds, iq.score) == (2, 55.0, 400.0, 0.5)  # (55 - 10) / (100 - 10)
    assert iq.standard_error == pytest.approx(5.0)  # half of the difference
    assert iq.errors_above_sac == pytest.approx((55 - 100) / np.sqrt(5**2 + 10**2))
    assert iq.score_at_equal_time == pytest.approx(2.25)  # after 400 s SAC is at step 200, at 30: (55 - 10) / (30 - 10)
    assert (sac.score, sac.score_at_equal_time, sac.errors_above_sac) == (1.0, 1.0, None)
    assert task.cells["sac"].after(300.0) == pytest.approx((15 + 25) / 2)  # half-way between 100 and 200 steps
    assert (task.cells["sac"].after(1.0), task.cells["sac"].after(9_999.0)) == (10.0, 100.0)


def test_without_clocks_there_is_no_cost():
    lines = {"iq": [whole("iq", 0, 60.0)], "sac": [whole("sac", 0, 110.0), whole("sac", 1, 90.0)]}
    task = score_study("s", lines, RANDOM).tasks[0]
    assert task.cells["iq"].cost is None
    assert task.standing("iq") is None


def test_a_sac_without_clocks_or_not_above_random_then_leaves_that_score_out():
    fast = found("iq", 0, [100, 200, 300, 400], [1, 2, 3, 60], rate=1.0)
    for sac in (whole("sac", 0, 110.0), found("sac", 0, [100, 200, 300, 400], [0, 0, 0, 110], rate=9.0)):
        standing = score_study("s", {"iq": [fast], "sac": [sac]}, RANDOM).tasks[0].standing("iq")
        assert standing is not None
        assert (standing.score, standing.score_at_equal_time, standing.errors_above_sac) == (0.5, None, None)


@pytest.mark.parametrize(
    ("content", "seconds"),
    [
        ("step,wall_seconds,cpu_seconds\n10,1.0,2.0\n20,3.0,4.5\n", [2.0, 4.5]),
        ("step,wall_seconds,cpu_seconds\n10,1.0,2.0\n10,1.5,2.5\n20,3.0,4.5\n", [2.0, 4.5]),  # before the checkpoint
        ("step,wall_seconds,cpu_seconds\n10,1.0,2.0\n20,3.0,4", [2.0, np.nan]),  # half-written
        ("step,wall_seconds,cpu_seconds\n10,1.0,x\n", [np.nan, np.nan]),
        ("", [np.nan, np.nan]),
        (None, [np.nan, np.nan]),
    ],
)
def test_clocks_are_read_at_the_evaluations_or_not_at_all(tmp_path, content, seconds):
    path = tmp_path / "timing.csv"
    if content is not None:
        path.write_text(content)
    np.testing.assert_array_equal(read_seconds(tmp_path, np.array([10, 20])), seconds)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "does not begin with its header"),
        ("step,mean_return,std_return\n10,1.0,0.1\n20,x,0.1\n", "not of numbers"),
        ("step,mean_return,std_return\n10,1.0,0.1\n20,1.0\n", "not whole"),
        ("step,mean_return,std_return\n10,1.0,0.1\n10,1.0,0.1\n", "do not ascend"),
        ("step,mean_return,std_return\n10,nan,0.1\n", "not finite"),
    ],
)
def test_broken_evaluations_are_refused(tmp_path, content, message):
    path = tmp_path / "evaluations.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_curve(tmp_path)


def test_a_half_written_last_row_is_left_out_and_said_so(tmp_path):
    path = tmp_path / "evaluations.csv"
    path.write_text("step,mean_return,std_return\n10,1.5,0.1\n20,2.")
    steps, means, cut = read_curve(tmp_path)
    assert (steps.tolist(), means.tolist(), cut) == ([10], [1.5], True)
    run = dataclasses.replace(found("iq", 0, steps, means), cut=cut)
    notes: list[str] = []
    align(run, np.array([10]), notes)
    assert any("half-written" in note for note in notes)


def test_figures_have_room_for_long_labels():
    """Every text lies inside of the picture, and the axes keep most of it."""
    names = {variant.label: variant for variant in STUDIES["adaptive-ablation"].variants}
    lines = {name: [whole(variant.algorithm, 0, 60.0, **variant.values)] for name, variant in names.items()}
    scores = score_study("s", lines, RANDOM)
    interval = statistics.Interval(0.5, 0.4, 0.6)
    drawn = [
        figures.task_curves(scores, scores.tasks[0]),
        figures.aggregates(scores, {name: dict.fromkeys(statistics.AGGREGATES, interval) for name in names}),
        figures.improvements(scores, dict.fromkeys(names, interval), list(names)[-1]),
    ]
    for figure in drawn:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        width, height = canvas.get_width_height()
        inside = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
        assert min(inside.x0, inside.y0) >= -1
        assert inside.x1 <= width + 1
        assert inside.y1 <= height + 1
        assert sum(axes.get_position().width for axes in figure.axes) > 0.4


REFERENCE = json.loads(Path(__file__).with_name("rliable_reference.json").read_text())
X, Y = np.array(REFERENCE["x"]), np.array(REFERENCE["y"])


@pytest.mark.parametrize(("name", "matrix"), [("x", X), ("y", Y)])
def test_aggregates_equal_those_of_rliable(name, matrix):
    for number, aggregate in enumerate(REFERENCE["order"]):
        value = float(statistics.AGGREGATES[aggregate](matrix))
        assert value == pytest.approx(REFERENCE["aggregates"][name][number], abs=1e-12)


@pytest.mark.parametrize(("name", "matrix"), [("x", X), ("y", Y)])
def test_intervals_agree_with_rliable_up_to_the_noise_of_resampling(name, matrix):
    found = statistics.intervals(matrix, np.random.default_rng(0), 20_000)
    low, high = REFERENCE["intervals"][name]
    for number, aggregate in enumerate(REFERENCE["order"]):
        width = high[number] - low[number]
        assert found[aggregate].low == pytest.approx(low[number], abs=0.04 * width)
        assert found[aggregate].high == pytest.approx(high[number], abs=0.04 * width)


def test_probability_of_improvement_equals_that_of_rliable():
    found = statistics.improvement(X, Y, np.random.default_rng(0))
    assert found.value == pytest.approx(REFERENCE["improvement"]["value"][0], abs=1e-12)
    low, high = REFERENCE["improvement"]["interval"]
    assert found.low == pytest.approx(low[0], abs=0.02)
    assert found.high == pytest.approx(high[0], abs=0.02)


@pytest.mark.parametrize(("name", "matrix"), [("x", X), ("y", Y)])
def test_profiles_equal_those_of_rliable(name, matrix):
    found = statistics.profile(matrix, np.array(REFERENCE["thresholds"]))
    np.testing.assert_allclose(found, REFERENCE["profiles"][name], atol=1e-12)


def test_aggregates_by_hand_with_a_missing_seed():
    scores = np.array([[1.0, 4.0], [3.0, 8.0], [np.nan, 6.0]])
    assert statistics.mean(scores) == (2 + 6) / 2
    assert statistics.median(scores) == (2 + 6) / 2
    assert statistics.iqm(scores) == (3 + 4 + 6) / 3  # 5 runs: one cut at each end
    assert statistics.profile(scores, np.array([3.5]))[0] == (0 + 1) / 2


def test_ties_count_half():
    assert statistics.probability_of_improvement(np.ones((2, 1)), np.ones((3, 1))) == 0.5


def test_resampling_stays_within_each_task_and_depends_on_the_generator_alone():
    scores = np.array([[1.0, 10.0], [2.0, 20.0], [np.nan, 30.0]])
    samples = statistics.resampled(scores, np.random.default_rng(3), 50)
    assert np.isnan(samples[:, 2, 0]).all()
    assert set(np.unique(samples[:, :2, 0])) == {1.0, 2.0}
    assert set(np.unique(samples[..., 1])) == {10.0, 20.0, 30.0}
    np.testing.assert_array_equal(samples, statistics.resampled(scores, np.random.default_rng(3), 50))


@pytest.mark.parametrize("scores", [[[0.5, 0.7]], [[0.4, 0.7], [0.6, np.nan]]])
def test_a_task_with_a_single_seed_leaves_the_bounds_open(scores):
    matrix, generator = np.array(scores), np.random.default_rng(0)
    found = [
        *statistics.intervals(matrix, generator, 20).values(),
        statistics.improvement(matrix, np.ones((3, 2)), generator, 20),
    ]
    assert found[1].value == pytest.approx(0.6)
    for interval in found:
        assert np.isfinite(interval.value)
        assert np.isnan(interval.low)
        assert np.isnan(interval.high)
    for value, low, high in (
        statistics.profile_band(matrix, np.array([0.0, 0.5]), generator, 20),
        statistics.curve_band(matrix[None], statistics.iqm, generator, 20),
    ):
        assert np.isfinite(value).all()
        assert np.isnan([low, high]).all()


# The head of a report, the names of its lines, and what runs tell of themselves while training.


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


def test_a_branch_does_not_take_the_place_of_the_run_without_it(tmp_path):
    (run,) = expand(Study("made", "", (Variant("iq"),)), Suite("few", ("Pendulum-v1",)), 1, 5_000).runs
    for name, level in (("again", -300.0), ("scratch", -1000.0)):
        write_run(tmp_path / name, run, level)
    (folder,) = (tmp_path / "again").rglob("seed-0")
    (folder / "branches.json").write_text(json.dumps([{"step": 0, "changes": {"initial policy": [None, "x"]}}]))
    section, _ = scores_of(tmp_path)
    assert {line: len(runs) for line, runs in section.lines.items()} == {"iq": 1, "iq branch": 1}


def test_a_seed_counts_once_in_a_line(tmp_path):
    variants = Variant("iq"), Variant("iq", {"eval_episodes": 3})
    for number, variant in enumerate(variants):
        made(tmp_path / str(number), variant)
    section, scores = scores_of(tmp_path)
    assert [cell.seeds for cell in scores.tasks[0].cells.values()] == [(0,), (0,)]
    assert list(section.lines) == ["iq", "iq (1/Pendulum-v1/iq/seed-0)"]


def test_runs_of_another_library_with_other_settings_are_lines_of_their_own(tmp_path):
    for seed, rate in enumerate((3e-4, 1e-3)):
        folder = tmp_path / f"sbx-{seed}"
        folder.mkdir()
        config = {"algorithm": "sbx-sac", "env": "Pendulum-v1", "steps": 20, "seed": seed, "learning_rate": rate}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "evaluations.csv").write_text("step,mean_return,more\n10,1.5,0\n20,2.5,0\n")
    section, _ = scores_of(tmp_path)
    assert list(section.lines) == ["sbx-sac", "sbx-sac (sbx-1)"]


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
