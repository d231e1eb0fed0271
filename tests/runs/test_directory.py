"""The one way in which a run folder is written, with handles and, on systems that have none, without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from implicitq import InputError
from implicitq.runs import directory as module
from implicitq.runs.directory import Directory


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
