"""The files of a run folder as they are read, whole or broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from implicitq.runs import layout
from implicitq.runs.settings import ForeignConfig
from implicitq.types import Evaluation, InputError


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
