"""Environments by their ids: from a module of the working folder, from a package of ours, and none at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import gymnasium as gym
import pytest

import implicitq
from implicitq.commands.main import run
from implicitq.envs.making import EnvironmentMaker
from implicitq.types import InputError

MODULE = """
import gymnasium
from toys import Toy
gymnasium.register("Hill-v0", Toy)
"""

ON_ITS_OWN = """
from gymnasium.envs.classic_control import PendulumEnv
class Hill(PendulumEnv):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, bool(abs(observation[2]) > 0.1), info
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Iterator[Path]:
    """A working folder with a module that no path of Python leads to."""
    (tmp_path / "hills.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("hills", None)
    gym.registry.pop("Hill-v0", None)


def told(capsys) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_a_module_of_the_working_folder_is_found_for_an_id_that_was_typed(here, small_flags, capsys):
    with pytest.raises(InputError, match="there is no module 'hills'"):
        implicitq.make("miq", "hills:Hill-v0")  # Python programs have a path of their own
    for flags in (["--env", "hills:Hill-v0"], ["--env=hills:Hill-v0", "--vectorization", "async"]):
        out = here / f"run{len(flags)}"
        assert run(["train", "miq", *flags, *small_flags, "--out", str(out)]) == 0, told(capsys)
    assert run(["evaluate", str(out), "--env", "hills:Hill-v0", "--episodes", "1"]) == 0
    assert run(["resume", str(out), "--env", "hills:Hill-v0", "--steps", "160"]) == 0


def test_the_command_itself_finds_it(here, small_flags):
    (here / "hills.py").write_text("import gymnasium\ngymnasium.register('Hill-v0', 'hills:Hill')\n" + ON_ITS_OWN)
    code = "import sys; sys.path.remove(''); from implicitq.commands.main import run; sys.exit(run(sys.argv[1:]))"
    words = ["train", "miq", "--env", "hills:Hill-v0", *small_flags, "--out", "run"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_working_folder_is_no_place_to_look_for_ids_from_files(here, small_flags, capsys):
    assert run(["train", "miq", "--env", "hills:Hill-v0", *small_flags, "--out", "run"]) == 0
    sys.modules.pop("hills")
    gym.registry.pop("Hill-v0")
    sys.path.remove(str(here))
    assert run(["evaluate", "run"]) == 2
    assert "which would run the module 'hills'; name the environment yourself" in told(capsys)
    assert run(["evaluate", "run", "--trust-env"]) == 2
    assert "there is no module 'hills'" in told(capsys)
    assert str(here) not in sys.path


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("no_such_module:Task-v0", None, "'no_such_module:Task-v0' names the module 'no_such_module', but there is no"),
        ("toys.inner:Task-v0", None, "there is no module 'toys.inner'; it must be installed, or on PYTHONPATH, or in"),
        ("half:Task-v0", "import not_installed_here", "'half:Task-v0' needs the package not_installed_here, which is"),
        (
            "half:Task-v0",
            "1 / 0",
            r"half:Task-v0 cannot be made: ZeroDivisionError: division by zero \(half.py, ",
        ),
        ("half:Task-v0", "def", r"half:Task-v0 cannot be made: SyntaxError: .*\(half.py, line 1\)$"),
        ("toys:Tow-v0", None, r"unknown environment 'toys:Tow-v0'; did you mean 'Toy-v0'\?"),
    ],
)
def test_what_is_wrong_with_a_module_is_said(name, content, sentence, tmp_path, monkeypatch):
    if content is not None:
        (tmp_path / "half.py").write_text(content)
        monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=sentence):
        EnvironmentMaker(name)()


@pytest.mark.skipif(util.find_spec("dm_control") is not None, reason="dm_control is installed")
def test_without_dm_control_its_extra_is_named():
    with pytest.raises(InputError, match=r"cartpole-balance-v0 needs the package .*pip install 'implicitq\[dm-control"):
        EnvironmentMaker("dm_control/cartpole-balance-v0")()
