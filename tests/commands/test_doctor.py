"""implicitq doctor, and the commands that are recommended at the end of a run."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from pathlib import Path

import pytest

from implicitq import agent, configs, doctor, video
from implicitq.commands import main as cli
from implicitq.commands.train import next_commands


def test_the_doctor_looks_at_everything_and_finds_that_training_works(capsys):
    assert cli.run(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["training_works"] is True
    findings = {finding["name"]: finding for finding in told["findings"]}
    assert {"versions", "devices", "cores", "processor", "compile cache", "memory", "disk"} <= findings.keys()
    assert importlib.metadata.version("jax") in findings["versions"]["told"]
    assert findings["training"]["told"].startswith("works")
    for name in ("video", "export", "hub", "tune"):
        found = findings[f"extra {name}"]
        assert found["state"] == "good" or found["remedy"] == f"pip install 'implicitq[{name}]'"
    assert str(Path.home()) not in json.dumps(told)


def test_the_doctor_says_so_where_training_does_not_work(monkeypatch, capsys):
    def broken(*_, **__):
        raise RuntimeError("no device")

    monkeypatch.setattr(agent, "make", broken)
    monkeypatch.setattr(doctor, "_rendering", lambda: iter(()))
    assert cli.run(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "does not work: RuntimeError: no device" in told
    assert "training does not work here" in told


def test_what_does_not_render_is_told_with_its_remedy(monkeypatch):
    def fails(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nImportError: no EGL\n")

    monkeypatch.setattr(subprocess, "run", fails)
    three, two = doctor._rendering()
    assert (three.state, two.state) == ("missing", "missing")
    assert "ImportError: no EGL" in three.told
    assert "apt install libegl1" in (three.remedy or "")
    assert two.remedy == "pip install 'implicitq[video]'"


def test_what_an_extra_lacks_is_found_through_the_extras_that_it_asks_for(monkeypatch):
    needs = {
        "implicitq": ["numpy>=1", "outer[fast]>=2; extra == 'speed'"],
        "outer": ["inner<2; extra == 'fast'", "other; extra == 'slow'", "gone; extra == 'fast'"],
    }
    have = {"numpy": "2.0", "outer": "2.1", "inner": "2.5"}

    def version(name: str) -> str:
        if name not in have:
            raise importlib.metadata.PackageNotFoundError(name)
        return have[name]

    monkeypatch.setattr(importlib.metadata, "requires", needs.get)
    monkeypatch.setattr(importlib.metadata, "version", version)
    assert list(doctor.missing_of("implicitq", "")) == []
    assert list(doctor.missing_of("implicitq", "speed")) == ["inner<2 (there is 2.5)", "gone"]


def test_recommended_commands_name_what_a_film_needs_and_modules_again(monkeypatch):
    pendulum = configs.resolve("miq", "Pendulum-v1")
    commands = next_commands(Path("my runs/one"), pendulum)
    assert "implicitq evaluate 'my runs/one' --episodes 20" in commands
    monkeypatch.setattr(video.importlib.util, "find_spec", lambda name: None)
    commands = next_commands(Path("run"), pendulum)
    assert "implicitq video run   (first: pip install 'implicitq[video]')" in commands
    assert not [command for command in commands if "HalfCheetah" in command]
    own = configs.resolve("miq", "toys:Toy-v0")
    assert f"implicitq resume run --env toys:Toy-v0 --steps {2 * own.steps}" in next_commands(Path("run"), own)


@pytest.mark.parametrize(
    ("have", "screen", "expected"),
    [({"EGL"}, "", "egl"), ({"OSMesa"}, "", "osmesa"), (set(), "", None), ({"EGL"}, ":0", None)],
)
def test_pictures_without_a_screen_are_drawn_by_a_library_that_needs_none(have, screen, expected, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", screen)
    monkeypatch.setattr(video.ctypes.util, "find_library", lambda name: name if name in have else None)
    assert video.renderer() == expected
    blocked = video.hindrance("HalfCheetah-v5")
    assert (blocked is None) == (expected is not None or bool(screen))
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    assert video.renderer() == "osmesa"
