import csv
import html
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from implicitq.commands import main as cli
from implicitq.reports.theory_figures import draw_parametrization
from implicitq.reports.theory_page import fresh_folder
from implicitq.theory import by_name, garnet, iq_dp, optimum
from implicitq.theory.bounds import value_bound
from implicitq.theory.complexity import (
    SCHEMES,
    Complexity,
    ComplexityPlan,
    Curve,
    fitted_slope,
    gap_curve,
    ladder,
    sample_complexity,
)
from implicitq.theory.study import PARTS, Averaging, StudyPlan, averaging_of, checked, measured, study, table
from implicitq.types import InputError


def test_importing_the_theory_needs_neither_jax_nor_the_rest_of_the_package():
    code = (
        "import sys, implicitq; before = set(sys.modules); import implicitq.theory; "
        "new = set(sys.modules) - before; "
        "ours = [n for n in new if n.startswith('implicitq.') and not n.startswith('implicitq.theory')]; "
        "heavy = {'jax', 'matplotlib', 'gymnasium', 'rich', 'tyro'} & new; "
        "assert not ours and not heavy, (ours, heavy)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("field", "value"), [("alpha", 2.0), ("temperature", 0.0), ("iterations", 0), ("noise", -1.0), ("seeds", 0)]
)
def test_a_plan_names_the_field_that_is_wrong(field, value):
    with pytest.raises(ValueError, match=f"{field} must"):
        StudyPlan(**{field: value})


def test_a_quick_plan_is_no_larger_and_keeps_the_rest():
    plan = StudyPlan(alpha=0.5, noise=0.3)
    assert plan.quick() == StudyPlan(alpha=0.5, noise=0.3, iterations=60, seeds=4)
    assert StudyPlan(iterations=12, seeds=2).quick() == StudyPlan(iterations=12, seeds=2)


def test_a_study_tells_in_its_table_what_the_theorems_say():
    plan, told = StudyPlan(iterations=30, seeds=2, noise=0.3, temperature=0.1), []
    rows = table(study("garnet", garnet(6, 2, 2), plan, report=told.append))
    assert len(told) == PARTS
    for row in rows:
        if row.part == "Theorem 1":
            assert row.value <= row.reference
        if row.part == "Theorem 2":
            assert 0 < row.value <= 1
    distances = [row.value for row in rows if row.part == "Limits"]
    assert max(distances[:2]) < 1e-4
    assert {row.verdict for row in rows if row.part != "Noise"} == {"holds"}
    assert {row.verdict for row in rows if row.part == "Noise"} <= {"measured", "not reached"}
    assert all(row.sentence.endswith(".") for row in rows)


def test_a_number_beyond_its_bound_fails_and_one_that_is_not_there_was_not_reached():
    assert checked("m", "p", "q", 1.0, 1.0, "").verdict == "holds"
    assert checked("m", "p", "q", 1.001, 1.0, "").verdict == "fails"
    assert checked("m", "p", "q", float("nan"), 1.0, "").verdict == "fails"
    assert measured("m", "p", "q", 3.0, "", 2.0).verdict == "measured"  # above a slope that binds nothing
    assert measured("m", "p", "q", float("nan"), "").verdict == "not reached"


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.9, 0.99])
def test_values_stay_within_their_bound_of_the_regularised_optimum(alpha):
    mdp = garnet(8, 3, 2)
    goal = optimum(mdp, (1 - alpha) * 0.3).value
    trace = iq_dp(mdp, alpha=alpha, temperature=0.3, iterations=200)
    distance = np.abs(trace.values[1:] - goal).max(axis=1)
    bound = value_bound(mdp, alpha=alpha, temperature=0.3, iterations=200)
    assert (distance <= bound + 1e-12).all()
    assert bound[-1] < 0.2 * bound[0]  # and the bound says something


def test_every_dash_and_every_slope_above_the_bound_is_explained():
    some, none = np.array([1.0, 8.0, 64.0]), np.array([1.0, np.nan, np.nan])
    counts = {name: none if name == "Q-learning, rate 1/k" else some for name in SCHEMES}
    found = Complexity(1 / np.array([1.0, 2.0, 4.0]), 0.8, counts, np.array([1.0, 2.0, 4.0]), 0.1, counts, 5)
    rows = {row.quantity: row for row in found.table()}
    steep = rows["slope in 1/epsilon, IQ-DP, alpha = 1"]  # 3, above 2
    assert (steep.verdict, round(steep.value, 6)) == ("measured", 3.0)
    assert "no violation" in steep.sentence
    assert "no faster than the bound" in rows["slope in 1/(1-discount), IQ-DP, alpha = 1"].sentence
    dash = rows["slope in 1/epsilon, Q-learning, rate 1/k"]
    assert dash.verdict == "not reached"
    assert "only 1 of 3 goals" in dash.sentence


def test_the_crossover_is_where_one_scheme_stops_being_behind():
    gaps = {"late": np.array([[3.0], [2.0], [0.5], [0.0]]), "early": np.array([[2.0], [1.0], [1.0], [0.0]])}
    averaging = Averaging(np.array([1, 10, 100, 1000]), gaps)
    assert averaging.crossover("late", "early") == 100
    assert averaging.crossover("early", "late") is None


def test_without_noise_a_bound_below_rounding_does_not_fail():
    result = study("garnet", by_name("garnet"), StudyPlan(noise=0.0, iterations=500, seeds=2))
    rows = [row for row in table(result) if row.part in ("Theorem 2", "Noise")]
    assert "fails" not in {row.verdict for row in rows}
    assert any("iterations without noise" in row.sentence for row in rows)


def test_the_crossover_comes_later_with_more_regularisation_and_less_noise():
    def crossover(noise, temperature):
        plan = StudyPlan(noise=noise, temperature=temperature, iterations=30, seeds=6)
        return averaging_of(garnet(30, 4, 3), plan).crossover("IQ-DP, alpha = 1", "value iteration")

    assert crossover(0.2, 0.1) < crossover(0.2, 1.0) < crossover(0.05, 1.0)


def test_the_ladder_loses_exactly_what_it_was_asked_to():
    losses = [0.5, 0.2, 0.05]
    best = optimum(ladder(0.9, losses))
    np.testing.assert_allclose(best.value[:3], 7.5 + np.array(losses), atol=1e-12)
    np.testing.assert_array_equal(best.policy[:3], [[0.0, 1.0]] * 3)
    with pytest.raises(ValueError, match=r"loss of state 1 must lie in \(0, 2.5\] at discount 0.9, got 3"):
        ladder(0.9, [0.5, 3.0])
    with pytest.raises(ValueError, match="discount of the ladder"):
        ladder(0.2, [0.1])


def test_more_samples_give_better_policies_on_the_ladder():
    mdp = ladder(0.8, [0.6, 0.3, 0.1])
    for name in ("IQ-DP, alpha = 1", "Speedy Q-learning"):
        curve = gap_curve(mdp, SCHEMES[name], iterations=3000, seeds=8, points=10)
        assert curve.gap[-1] < 0.1 < 0.2 < curve.gap[0]


def test_first_within_asks_the_gap_to_stay_small():
    curve = Curve(np.array([1, 2, 4, 8]), np.array([0.1, 0.5, 0.2, 0.05]))
    assert curve.first_within(0.2) == 4
    assert curve.first_within(0.6) == 1
    assert np.isnan(curve.first_within(0.01))


def test_fitted_slopes_are_those_of_power_laws():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    assert fitted_slope(x, 3 * x**2.5) == pytest.approx(2.5)
    assert np.isnan(fitted_slope(x, np.array([1.0, 2.0, np.nan, np.nan])))


def test_sample_complexity_reports_every_scheme():
    plan = ComplexityPlan(epsilons=(0.3, 0.25, 0.2), horizons=(2.5, 3.0, 3.5), iterations=300, seeds=4)
    seen = []
    found = sample_complexity(plan, report=seen.append)
    assert len(seen) == plan.parts == len(SCHEMES) * 4
    assert set(found.slopes()) == set(SCHEMES)
    assert all(samples.shape == (3,) for samples in (*found.by_epsilon.values(), *found.by_horizon.values()))
    assert [row.value for row in found.table()] == pytest.approx(
        [slope for pair in found.slopes().values() for slope in pair], nan_ok=True
    )
    bounds = {row.quantity: row.reference for row in found.table()}
    assert bounds["slope in 1/epsilon, IQ-DP, alpha = 1"] == 2.0
    assert bounds["slope in 1/(1-discount), Speedy Q-learning"] == 4.0
    assert bounds["slope in 1/epsilon, Q-learning, rate 1/k"] is None  # no bound is claimed


def run(folder: Path, *mdps: str) -> Path:
    small = ["--quick", "--iterations", "12", "--seeds", "2", "--no-complexity"]
    assert cli.run(["theory", "--mdp", *mdps, *small, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> Path:
    """What the command leaves, to look at."""
    return run(tmp_path_factory.mktemp("theory") / "chain", "chain")


def test_the_command_leaves_figures_a_table_and_a_page(tmp_path, capsys):
    folder = run(tmp_path / "new", "chain", "forest")
    names = {path.name for path in folder.iterdir()}
    for mdp in ("chain", "forest"):
        for kind in ("theorem1", "theorem2", "averaging", "limits"):
            assert {f"{mdp}-{kind}.png", f"{mdp}-{kind}.svg"} <= names
    assert {"table.csv", "index.html", "options.json", "parametrization.png", "parametrization.svg"} <= names
    with (folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["part"] for row in rows} == {"Theorem 1", "Theorem 2", "Noise", "Limits"}
    page = (folder / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 9
    assert "http" not in page  # self-contained
    options = json.loads((folder / "options.json").read_text())["options"]
    assert (options["mdp"], options["iterations"], options["alpha"]) == (["chain", "forest"], 12, 0.9)
    assert "The theory, in numbers" in capsys.readouterr().out


def test_the_same_command_writes_the_same_bytes(chain, tmp_path):
    again = run(tmp_path / "again", "chain")
    assert {path.name for path in again.iterdir()} == {path.name for path in chain.iterdir()}
    for path in chain.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


def test_a_folder_with_content_is_refused_and_the_default_folder_is_always_new(tmp_path, monkeypatch):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("x")
    with pytest.raises(InputError, match="out must be a new or empty folder"):
        fresh_folder(tmp_path / "used")
    monkeypatch.chdir(tmp_path)
    assert [fresh_folder(None).as_posix() for _ in range(2)] == ["runs/theory-1", "runs/theory-2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--alpha", "2"], "alpha must be a number in [0, 1], got 2.0"),
        (["--temperature", "0"], "temperature must be a finite number > 0, got 0.0"),
        (["--seeds", "0"], "seeds must be an integer >= 1, got 0"),
        (["--mdp"], "--mdp needs a value"),
        (["--out", "."], "out must be a new or empty folder, got ., which is not"),
    ],
)
def test_bad_options_get_one_sentence_before_any_work(words, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert cli.run(["theory", *words]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
    assert not (tmp_path / "runs").exists()


def test_the_page_has_a_verdict_and_a_sentence_per_row_and_says_how_many_seeds_each_part_has(chain):
    page = (chain / "index.html").read_text()
    with (chain / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(row["verdict"] and row["sentence"].endswith(".") for row in rows)
    for row in rows:
        assert html.escape(row["sentence"]) in page
    assert page.count('data-name="verdict">holds</td>') == sum(row["verdict"] == "holds" for row in rows) == 8
    assert "8 of 8 checks hold; 6 numbers measured" in page or "5 numbers measured; 1 not reached" in page
    assert re.findall(r"\d+ seeds?", page) == ["2 seeds", "2 seeds"]  # Theorem 2, noise
    assert "one and the same sequence of noise" in page


def test_fig_1_shows_an_implicit_q_value_that_is_exact():
    result = study("chain", by_name("chain"), StudyPlan(iterations=2, seeds=1))
    _, middle, right = draw_parametrization(result).axes
    best = optimum(result.mdp, 0.1)
    q = middle.lines[-1].get_ydata()
    (state,) = np.flatnonzero((best.q == q).all(axis=1))
    drops = [float(text.get_text()) for text in middle.texts if text.get_text()[0] in "+-"]
    np.testing.assert_allclose(best.value[state] + np.array(drops), q, atol=6e-4)  # as far as it is written
    np.testing.assert_allclose(right.lines[0].get_ydata(), [bar.get_height() for bar in right.patches], atol=1e-9)
