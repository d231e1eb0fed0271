"""The cache of compiled functions: where it is, what it survives, and that it changes no bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from implicitq import compilation
from implicitq.compilation import is_about_cache, use_cache

READING = "Error reading persistent compilation cache entry for 'jit_update': error: Error -3"


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """The folder of a user who has set nothing."""
    for name in ("IMPLICITQ_CACHE", "JAX_COMPILATION_CACHE_DIR", *compilation._JAX_SETTINGS):
        monkeypatch.setenv(name, "")  # so that it is as before at the end, whatever the test does
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "implicitq" / "compiled"


def entry_in(folder: Path, name: str = "jit_update-0a1b-cache", size: int = 10, age: float = 0) -> Path:
    path = folder / name
    path.write_bytes(bytes(size))
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))
    return path


def test_it_lies_in_the_users_cache_folder_and_is_the_users_alone(root):
    folder = use_cache()
    assert folder is not None
    assert folder.parent == root
    assert folder.stat().st_mode & 0o777 == 0o700
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)


def test_a_variable_names_another_folder(root, tmp_path, monkeypatch):
    monkeypatch.setenv("IMPLICITQ_CACHE", str(tmp_path / "other"))
    folder = use_cache()
    assert folder is not None
    assert folder.parent == tmp_path / "other"


@pytest.mark.parametrize("how", ["variable", "argument"])
def test_it_can_be_switched_off_also_for_processes_started_from_here(how, root, monkeypatch):
    if how == "variable":
        monkeypatch.setenv("IMPLICITQ_CACHE", "off")
    else:
        use_cache()
    assert use_cache(how == "variable") is None
    assert os.environ["IMPLICITQ_CACHE"] == "off"
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_a_folder_that_the_user_has_chosen_for_jax_stays(root, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "mine"))
    assert use_cache() is None
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "mine")
    assert not root.exists()


def test_machines_that_share_a_home_and_processes_with_other_threads_have_folders_of_their_own(root, monkeypatch):
    folders = {use_cache()}
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(77)))
    folders.add(use_cache())
    monkeypatch.setattr(Path, "read_text", lambda path: "processor\t: 0\nflags\t\t: sse2\n\nprocessor\t: 1\n")
    folders.add(use_cache())
    assert len(folders) == 3
    assert None not in folders


@pytest.mark.parametrize("harm", ["others may write", "a file is in the way"])
def test_a_folder_that_is_not_safe_is_not_used(harm, root):
    folder = use_cache()
    assert folder is not None
    if harm == "others may write":
        folder.chmod(0o777)
    else:
        folder.rmdir()
        folder.touch()
    assert use_cache() is None
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_the_oldest_entries_go_when_it_grows_too_large(root, monkeypatch):
    folder = use_cache()
    assert folder is not None
    monkeypatch.setattr(compilation, "_LARGEST", 100)
    paths = [entry_in(folder, f"jit_f-{age}-cache", 30, age) for age in range(4)]
    use_cache()
    assert [path.exists() for path in paths] == [True, True, False, False]


def test_what_cannot_be_read_is_removed_unless_somebody_may_just_be_writing_it(root):
    folder = use_cache()
    assert folder is not None
    old, young = entry_in(folder, age=1_000), entry_in(folder, "jit_update-ffff-cache")
    other = entry_in(folder, "jit_sample-0a1b-cache", age=1_000)
    assert is_about_cache(READING)
    assert [path.exists() for path in (old, young, other)] == [False, True, True]


def test_other_warnings_are_not_about_the_cache(root):
    use_cache()
    assert not is_about_cache("the training has diverged")


def test_a_cached_function_gives_the_bits_of_a_fresh_one_and_a_broken_entry_does_no_harm(root):
    """One process: compiled, loaded from disk, and compiled again where all entries have lost their ends."""
    code = """
import hashlib, json, os, pathlib, warnings
from implicitq.compilation import use_cache
folder = use_cache()
import jax, numpy as np
import implicitq
from implicitq.commands import main
import toys
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
warnings.showwarning = main._show_warning

def trained():
    jax.clear_caches()
    hits.clear()
    with implicitq.make("miq", toys.Toy, **toys.SMALL) as agent:
        arrays = agent.learn(60)._trainer.learner.arrays()
    told = hashlib.sha256(b"".join(array.tobytes() for array in arrays.values())).hexdigest()
    return told, len(hits)

found = [trained(), trained()]
for path in folder.iterdir():
    path.write_bytes(path.read_bytes()[:-20])
    os.utime(path, (1, 1))
found += [trained(), trained()]
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    assert "cache" not in done.stderr
    fresh, loaded, broken, mended = json.loads(done.stdout)
    assert fresh[0] == loaded[0] == broken[0] == mended[0]
    assert loaded[1] > 10
    assert broken[1] < 5
    assert mended[1] == loaded[1]
