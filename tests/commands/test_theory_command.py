import csv
import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from implicitq.commands import main as cli
from implicitq.reports.theory_figures import draw_parametrization
from implicitq.reports.theory_page import fresh_folder
from implicitq.theory import by_name, optimum
from implicitq.theory.study import StudyPlan, study
from implicitq.types import InputError


def run(folder: Path, *mdps: str) -> Path:
    small = ["--quick", "--iterations", "12", "--seeds", "2", "--no-complexity"]
    assert cli.run(["theory", "--mdp", *mdps, *small, "--out", str(folder)]) == 0
    return folder


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


def test_the_same_command_writes_the_same_bytes(tmp_path):
    folders = [run(tmp_path / name, "chain") for name in "ab"]
    for path in folders[0].iterdir():
        assert path.read_bytes() == (folders[1] / path.name).read_bytes(), path.name


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
        (["--mdp"], "mdp must name at least one MDP, got none"),
        (["--out", "."], "out must be a new or empty folder, got ., which is not"),
    ],
)
def test_bad_options_get_one_sentence_before_any_work(words, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert cli.run(["theory", *words]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
    assert not (tmp_path / "runs").exists()


def test_the_page_has_a_verdict_and_a_sentence_per_row_and_says_how_many_seeds_each_part_has(tmp_path, capsys):
    folder = run(tmp_path / "new", "chain")
    page = (folder / "index.html").read_text()
    with (folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(row["verdict"] and row["sentence"].endswith(".") for row in rows)
    for row in rows:
        assert html.escape(row["sentence"]) in page
    assert page.count('<td class="holds">holds</td>') == sum(row["verdict"] == "holds" for row in rows) == 8
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
