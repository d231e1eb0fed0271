import csv
import json
from pathlib import Path

import pytest

from implicitq.commands import main as cli
from implicitq.reports.theory_page import fresh_folder
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
    assert {"table.csv", "index.html", "options.json"} <= names
    with (folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["part"] for row in rows} == {"Theorem 1", "Theorem 2", "Noise", "Limits"}
    page = (folder / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 8
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
