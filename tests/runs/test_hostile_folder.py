"""A run folder from a stranger: nothing outside of it is written, cut or deleted, whatever is in it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from implicitq import InputError
from implicitq.commands import main as cli
from implicitq.runs import directory as module
from implicitq.runs import manifests
from implicitq.runs.atomic_files import digest_of, read_arrays
from implicitq.runs.directory import Directory
from implicitq.runs.layout import LOGS


@pytest.fixture
def canary(tmp_path) -> Path:
    """A folder beside the run, with files of such names as a run has."""
    folder = tmp_path / "canary"
    folder.mkdir()
    for name in ("precious.txt", "000000040.json", "000000040-0000.safetensors", "000000080.safetensors"):
        (folder / name).write_text("precious")
    return folder


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def forge(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change all manifests, with checksums that fit."""
    for path in (run / "checkpoints").glob("*.json"):
        manifest = json.loads(path.read_text())
        del manifest["sha256"]
        change(manifest)
        path.write_text(json.dumps({**manifest, "sha256": digest_of(manifest)}))


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("kind", ["log", "segment"])
def test_names_in_a_manifest_lead_nowhere_else(run, canary, kind, absolute, capsys):
    name = str(canary / "precious.txt") if absolute else "../canary/precious.txt"
    if kind == "log":
        forge(run, lambda manifest: manifest["logs"].update({name: {"size": 0, "crc32": 0}}))
    else:
        forge(run, lambda manifest: manifest["segments"][0].update(file=f"../{name}"))
    before = contents(canary), contents(run)
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "160"]) == 2
    assert f"has {kind}s that no checkpoint has" in capsys.readouterr().err.replace("\n", " ")
    assert (contents(canary), contents(run)) == before


LINKS = {
    "policy.safetensors.part": "precious.txt",
    "policy.safetensors": "precious.txt",
    "metrics.csv": "precious.txt",
    "timing.csv": "precious.txt",
    ".lock": "new.txt",
    "curve.png.part": "new.txt",
    "salvaged.json": "precious.txt",
    "checkpoints": "",
    "replay": "",
    "checkpoints/000000040.json": "000000040.json",
    "checkpoints/000000160.json.part": "new.txt",
    "replay/000000040-0000.safetensors": "000000040-0000.safetensors",
}


@pytest.mark.parametrize("name", LINKS)
def test_links_are_refused(run, canary, name, capsys):
    place = run / name
    if place.is_symlink() or place.exists():
        place.rename(run.parent / "moved-away")
    place.symlink_to(canary / LINKS[name])
    before = contents(canary)
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "160"]) == 2
    assert "is a symbolic link; a run folder has" in capsys.readouterr().err.replace("\n", " ")
    assert contents(canary) == before


PIPES = ["metrics.csv", "replay", "policy.safetensors.part", "checkpoints/000000120.safetensors"]


@pytest.mark.parametrize("name", [*PIPES, "replay/000000040-0000.safetensors"])
def test_what_is_neither_a_file_nor_a_folder_is_refused(run, name, capsys):
    """Reading or writing a pipe would wait for ever."""
    if (run / name).exists():
        (run / name).rename(run.parent / "moved-away")
    os.mkfifo(run / name)
    before = [path.read_bytes() for path in sorted(run.glob("*.csv")) if path.is_file()]
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "160"]) == 2
    assert "is not a plain file; a run folder has" in capsys.readouterr().err.replace("\n", " ")
    assert [path.read_bytes() for path in sorted(run.glob("*.csv")) if path.is_file()] == before


def test_a_pipe_in_the_place_of_evaluations_does_not_hold_up_a_report(run, capsys):
    (run / "evaluations.csv").unlink()
    os.mkfifo(run / "evaluations.csv")
    assert cli.run(["report", str(run.parent)]) == 2
    assert "evaluations.csv cannot be read: it is not a plain file" in capsys.readouterr().err.replace("\n", " ")


def test_a_link_that_appears_while_a_run_is_going_on_is_not_followed(small, tmp_path, canary):
    import implicitq

    agent = implicitq.make("miq", "toys:Toy-v0", **small).learn(40, out=tmp_path / "run")
    (tmp_path / "run" / "metrics.csv").unlink()
    (tmp_path / "run" / "metrics.csv").symlink_to(canary / "precious.txt")
    before = contents(canary)
    with pytest.raises(InputError, match=r"metrics.csv is a symbolic link"):
        agent.learn(40)
    agent.close()
    assert contents(canary) == before


def test_another_name_of_a_log_keeps_what_the_run_cuts_off(run, tmp_path):
    """A hard link, as archives may hold."""
    with open(run / "metrics.csv", "ab") as file:
        file.write(b"130,rows after the checkpoint\n")
    (tmp_path / "precious.csv").hardlink_to(run / "metrics.csv")
    content = (tmp_path / "precious.csv").read_bytes()
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "140"]) == 0
    assert (tmp_path / "precious.csv").read_bytes() == content
    assert b"rows after" not in (run / "metrics.csv").read_bytes()


def test_the_folder_itself_may_be_reached_through_a_link(run, tmp_path):
    (tmp_path / "shortcut").symlink_to(run)
    assert cli.run(["resume", str(tmp_path / "shortcut"), "--trust-env", "--steps", "140"]) == 0
    assert (tmp_path / "shortcut").is_symlink()


def test_a_film_does_not_follow_a_link_in_the_folder(tmp_path, canary):
    from implicitq.runs.atomic_files import write_atomically

    for name in ("video.gif", "video.gif.part"):
        (tmp_path / name).symlink_to(canary / "precious.txt")
    write_atomically(tmp_path / "video.gif", b"film")
    assert (canary / "precious.txt").read_text() == "precious"
    assert (tmp_path / "video.gif").read_bytes() == b"film"


SEGMENT = {"file": "000000040-0000.safetensors", "sha256": "", "first": [0], "until": [40]}
TRAINER = {"step": 120, "episodes": 1, "finished": [], "replay": {"written": [1], "generator": {}}}
MALFORMED: dict[str, dict[str, Any]] = {
    "arrays": {"arrays": 3},
    "no arrays": {"arrays": None},
    "segments": {"segments": {}},
    "a segment": {"segments": [3]},
    "a name": {"segments": [{**SEGMENT, "file": "000000040-0000.safetensors\n"}]},
    "a folder": {"segments": [{**SEGMENT, "file": "x/000000040-0000.safetensors"}]},
    "too many rows": {"segments": [{**SEGMENT, "until": [10**30]}]},
    "fewer than none": {"segments": [{**SEGMENT, "first": [50]}]},
    "no numbers": {"segments": [{**SEGMENT, "first": ["0"]}]},
    "other rings": {"segments": [{**SEGMENT, "first": [0, 0]}]},
    "no logs": {"logs": {}},
    "logs": {"logs": []},
    "a size": {"logs": {name: {"size": -1, "crc32": 0} for name in LOGS}},
    "a half mark": {"logs": {name: {"size": 1} for name in LOGS}},
    "trainer": {"trainer": []},
    "no step": {"trainer": {"episodes": 0}},
    "a return": {"trainer": {**TRAINER, "finished": [[10**400, 3]]}},
    "restarts": {"trainer": {**TRAINER, "env_restarts": "1"}},
    "config": {"config": [1]},
    "format": {"format": True},
    "text": {"format": "1"},
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_manifest_of_another_shape_is_refused(run, what):
    forge(run, lambda manifest: manifest.update(MALFORMED[what]))
    with pytest.raises(InputError, match=r"that no checkpoint has|is not a checkpoint"):
        manifests.read(run / "checkpoints" / "000000120.json", LOGS)


@pytest.mark.parametrize(
    ("part", "value"),
    [("generator", {"bit_generator": "PCG64", "state": 1}), ("generator", {}), ("written", [7]), ("written", "80")],
)
def test_a_trainer_that_cannot_be_restored_is_refused_in_a_sentence(run, part, value, capsys):
    forge(run, lambda manifest: manifest["trainer"]["replay"].update({part: value}))
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "160"]) == 2
    assert "no checkpoint of" in capsys.readouterr().err


def rewrite(run: Path, header: dict[str, str], **arrays: Any) -> None:
    """Other arrays in all checkpoints, with checksums that fit."""
    for path in (run / "checkpoints").glob("*.safetensors"):
        found, _ = read_arrays(path)
        path.write_bytes(safetensors.numpy.save({**found, **arrays}, header))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        forge(run, lambda manifest, step=int(path.stem), digest=digest: manifest["trainer"]["step"] != step
              or manifest.update(arrays=digest))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("envs.episodes", np.array([-1]), "an episode with a number below 0"),
        ("envs.episodes", np.array([np.nan]), "no envs.episodes of int64[1]"),
        ("returns", np.array([3]), "no returns of float64[1]"),
        ("observations", np.zeros((1, 99), np.float32), "no observations of float32"),
    ],
)
def test_arrays_that_no_run_has_are_refused(run, name, array, message, capsys):
    rewrite(run, {"implicitq": "{}"}, **{name: array})
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "160"]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("header", [{}, {"implicitq": "[" * 100_000}])
def test_arrays_with_a_header_that_cannot_be_parsed_are_refused(run, header, capsys):
    rewrite(run, header)
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "160"]) == 2
    assert "is not a file of implicitq, or is damaged" in capsys.readouterr().err.replace("\n", " ")


def test_a_step_that_is_not_that_of_its_file_is_refused(run):
    forge(run, lambda manifest: manifest["trainer"].update(step=10**9))
    with pytest.raises(InputError, match="has trainer that no checkpoint has"):
        manifests.read(run / "checkpoints" / "000000120.json", LOGS)


@pytest.fixture(params=["handles", "paths"])
def opened(request, tmp_path, monkeypatch):
    if request.param == "paths":
        monkeypatch.setattr(module, "_HANDLES", False)
        monkeypatch.setattr(module, "_NO_LINK", 0)
    (tmp_path / "run").mkdir()
    directory = Directory(tmp_path / "run", ".lock", ("inner",))
    directory.make_subfolders()
    yield directory
    directory.close()


def test_files_are_written_appended_to_cut_renamed_and_removed(opened):
    for name in ("log", "inner/log"):
        opened.write(name, b"one")
        opened.append(name, b"two")
        assert opened.read(name) == b"onetwo"
        opened.cut(name, 4)
        assert opened.read(name) == b"onet"
        opened.rename(name, ".old")
        assert opened.read(name) == b""
    assert opened.files() == [".lock", "log.old"]
    assert opened.files("inner") == ["inner/log.old"]
    opened.remove("inner/log.old")
    assert opened.files("inner") == []


def test_half_a_file_that_was_left_does_not_stand_in_the_way(opened):
    (opened.path / "log.part").write_bytes(b"half")
    opened.write("log", b"whole")
    assert opened.files() == [".lock", "log"]


@pytest.mark.parametrize("name", ["log", "log.part", "inner/log", "inner/log.part"])
def test_links_are_not_followed(opened, tmp_path, name):
    canary = tmp_path / "canary"
    canary.write_text("precious")
    (opened.path / name).symlink_to(canary)
    target = name.removesuffix(".part")
    actions = [lambda: opened.write(target, b"new")]
    if name == target:
        actions += [lambda: opened.append(name, b"new"), lambda: opened.cut(name, 0), lambda: opened.read(name)]
    for act in actions:
        with pytest.raises(InputError, match=rf"{name} is a symbolic link; a run folder has a plain file there"):
            act()
    assert canary.read_text() == "precious"


def test_a_file_that_is_not_there_is_not_made_by_appending(opened):
    with pytest.raises(InputError, match="log cannot be written: No such file"):
        opened.append("log", b"row")
    assert opened.files() == [".lock"]


def test_one_run_writes_at_a_time(opened):
    with pytest.raises(InputError, match=r"this process already has .* open; close the agent"):
        Directory(opened.path, ".lock", ())


def test_nothing_is_written_once_it_is_closed_or_gone(opened, tmp_path):
    opened.path.rename(tmp_path / "moved")
    for act in (lambda: opened.write("log", b""), lambda: opened.remove(".lock"), opened.make_subfolders):
        with pytest.raises(InputError, match="was removed or replaced while a run was writing it"):
            act()
    assert not opened.path.exists()
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == [".lock", "inner"]
    opened.close()
    with pytest.raises(InputError, match="was closed; nothing more is written"):
        opened.write("log", b"")


def test_systems_without_handles_of_folders_can_import_it():
    code = (
        "import os; os.supports_dir_fd = set(); del os.O_NOFOLLOW, os.O_DIRECTORY\n"
        "from implicitq.runs import directory; assert not directory._HANDLES"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
