"""implicitq plot: any runs in one picture."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from implicitq import InputError
from implicitq.commands import main as cli
from implicitq.runs.curve import _PANELS, Curves, _points, overview
from implicitq.runs.metrics import read_metrics
from implicitq.runs.overview import read_curves

HEADERS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("form", list(HEADERS))
def test_a_run_is_drawn_in_every_format(run, tmp_path, form, capsys):
    assert cli.run(["plot", str(run), "--out", str(tmp_path / f"picture.{form}")]) == 0
    assert (tmp_path / f"picture.{form}").read_bytes().startswith(HEADERS[form])
    assert "1 run(s)" in capsys.readouterr().out


def test_runs_are_found_below_a_folder_once_and_told_apart_by_what_differs(run, tmp_path):
    for seed in (1, 2):
        other = shutil.copytree(run, tmp_path / "more" / f"seed-{seed}")
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps({**config, "seed": seed}))
    found = read_curves([run, tmp_path / "more", run])
    assert [curves.label for curves in found] == ["seed 0", "seed 1", "seed 2"]
    assert overview(found).startswith(HEADERS["png"])
    shutil.copytree(run, tmp_path / "more" / "again")
    assert f"({tmp_path / 'more' / 'again'})" in read_curves([run, tmp_path / "more"])[1].label


def test_every_panel_has_the_numbers_of_the_logs(run):
    (found,) = read_curves([run])
    columns = read_metrics(run)
    assert found.label == "miq on toys:Toy-v0, seed 0"
    for panel, column in _PANELS.items():
        steps, values = _points(found, panel)
        if column == "":
            assert steps.tolist() == [40, 80, 120]
        elif column == "temperature":
            assert values.tolist() == [0.1] * 6, "a fixed one is that of the config"
        else:
            known = np.isfinite(columns[column])
            np.testing.assert_array_equal(values, columns[column][known])
            np.testing.assert_array_equal(steps, columns["step"][known])


def test_a_run_of_another_library_has_its_evaluations_only(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"algorithm": "sbx-sac", "env": "Task $x$", "steps": 20, "seed": 0})
    )
    (tmp_path / "evaluations.csv").write_text("step,mean_return,more\n10,1.5,0\n20,2.5,0\n")
    found = read_curves([tmp_path])
    assert _points(found[0], "evaluation, mean return")[1].tolist() == [1.5, 2.5]
    assert overview(found).startswith(HEADERS["png"])


def test_many_runs_have_a_legend_that_ends():
    steps = np.array([1.0, 2.0])
    runs = [Curves(f"run {number}", [], {"step": steps, "loss": steps}) for number in range(30)]
    assert overview(runs).startswith(HEADERS["png"])


def test_what_cannot_be_drawn_is_said(run, tmp_path, capsys):
    for words, sentence in (
        ([tmp_path / "nothing"], "nothing is not a folder"),
        ([tmp_path / "empty"], "there is no run in"),
        ([run, "--out", "picture.jpeg"], "the picture must end in .png, .svg or .pdf, got picture.jpeg"),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert cli.run(["plot", *map(str, words)]) == 2
        assert sentence in " ".join(capsys.readouterr().err.split())
    for name in ("evaluations.csv", "metrics.csv"):
        header = (run / name).read_text().splitlines()[0]
        (run / name).write_text(f"{header}\n")
    with pytest.raises(InputError, match="there is nothing to draw yet in"):
        read_curves([run])
    (run / "metrics.csv").write_text("step,loss\n1,2,3\n")
    with pytest.raises(InputError, match=r"run cannot be drawn: metrics.csv is not a table that begins with step"):
        read_curves([run])
