"""The files of a run folder as they are read, whole or broken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from implicitq import InputError
from implicitq.commands import main as cli
from implicitq.runs import layout
from implicitq.runs.curve import _PANELS, Curves, _points, overview, read_curves
from implicitq.runs.logs import read_metrics
from implicitq.runs.settings import ForeignConfig
from implicitq.types import Evaluation


def write_evaluations(folder: Path, text: str) -> None:
    (folder / layout.EVALUATIONS).write_text(text)


def test_evaluations_are_read_with_every_episode(tmp_path):
    header = ",".join(layout.evaluation_columns(2))
    assert header == "step,mean_return,std_return,mean_length,return_0,return_1,length_0,length_1"
    write_evaluations(tmp_path, f"{header}\n40,2.0,1.0,4.5,1.0,3.0,4,5\n80,2.5,0.5,6.0,2.0,3.0,6,6\n120,")
    assert layout.read_evaluations(tmp_path) == [Evaluation((1.0, 3.0), (4, 5), 40), Evaluation((2.0, 3.0), (6, 6), 80)]


@pytest.mark.parametrize("read", [layout.read_evaluations, layout.read_curve])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "it has no evaluations.csv"),
        ("mean_return,step\n", "does not begin with its header"),
        ("step,mean_return,std_return\n10,1.0\n", "has a row that is not whole"),
        ("step,mean_return,std_return\nx,1.0,1.0\n", "has a row that is not of numbers"),
    ],
)
def test_both_readers_of_evaluations_refuse_in_the_same_words(tmp_path, read, text, message):
    if text is not None:
        write_evaluations(tmp_path, text)
    with pytest.raises(InputError, match=message):
        read(tmp_path)


def test_checkpoints_are_counted_by_their_finished_files(tmp_path):
    assert layout.checkpoint_steps(tmp_path) == []
    folder = tmp_path / layout.CHECKPOINTS
    folder.mkdir()
    for name in ("000000120.json", "000000080.json", "000000160.safetensors", "000000200.json.part", "notes.json"):
        (folder / name).write_text("{}")
    assert layout.checkpoint_steps(tmp_path) == [80, 120]


def test_a_committed_run_folder_is_read(layout_1):
    run = layout.read_run(layout_1 / "sac", "sac")
    assert run.config == layout.read_config(layout_1 / "sac")
    assert run.finished
    assert layout.read_evaluations(run.folder)[-1].mean == run.means[-1]


def test_a_run_of_another_library_is_read_with_what_it_tells(tmp_path):
    values = {"algorithm": "sbx-sac", "env": "HalfCheetah-v5", "steps": 30, "seed": 2, "learning_starts": 5}
    (tmp_path / layout.CONFIG).write_text(json.dumps(values))
    write_evaluations(tmp_path, "step,mean_return,std_return\n10,1.5,0.0\n20,2.5,0.0\n")
    run = layout.read_run(tmp_path, "run")
    assert run.config == ForeignConfig("sbx-sac", "HalfCheetah-v5", 30, 2, 10, values)
    assert not run.finished
    (tmp_path / layout.CONFIG).write_text(json.dumps({**values, "steps": "many"}))
    with pytest.raises(InputError, match=r"config.json has no steps that can be used, got 'many'"):
        layout.read_run(tmp_path, "run")
    (tmp_path / layout.CONFIG).write_text(json.dumps({**values, "algorithm": "sac"}))
    with pytest.raises(InputError, match=r"config.json has run-folder layout None"):
        layout.read_run(tmp_path, "run")


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
