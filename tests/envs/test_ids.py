"""Environments by their ids: from a module of the working folder, from a package of ours, and none at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import gymnasium
import gymnasium as gym
import numpy as np
import pytest

import implicitq
from implicitq import video
from implicitq.commands import main as cli
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
        assert cli.run(["train", "miq", *flags, *small_flags, "--out", str(out)]) == 0, told(capsys)
    assert cli.run(["evaluate", str(out), "--env", "hills:Hill-v0", "--episodes", "1"]) == 0
    assert cli.run(["resume", str(out), "--env", "hills:Hill-v0", "--steps", "160"]) == 0


def test_the_command_itself_finds_it(here, small_flags):
    (here / "hills.py").write_text("import gymnasium\ngymnasium.register('Hill-v0', 'hills:Hill')\n" + ON_ITS_OWN)
    code = "import sys; sys.path.remove(''); from implicitq.commands.main import run; sys.exit(run(sys.argv[1:]))"
    words = ["train", "miq", "--env", "hills:Hill-v0", *small_flags, "--out", "run"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_working_folder_is_no_place_to_look_for_ids_from_files(here, small_flags, capsys):
    assert cli.run(["train", "miq", "--env", "hills:Hill-v0", *small_flags, "--out", "run"]) == 0
    sys.modules.pop("hills")
    gym.registry.pop("Hill-v0")
    sys.path.remove(str(here))
    assert cli.run(["evaluate", "run"]) == 2
    assert "which would run the module 'hills'; name the environment yourself" in told(capsys)
    assert cli.run(["evaluate", "run", "--trust-env"]) == 2
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


CANARY = """
import gymnasium
from toys import Toy
gymnasium.register("Canary-v0", Toy)
"""
SENTENCE = (
    "names the environment 'canary:Canary-v0', which would run the module 'canary'; name the environment yourself "
    "(--env, or env= in Python), or trust the file (--trust-env, trust_env=True)"
)


@pytest.fixture
def run(tmp_path, monkeypatch, small) -> Iterator[Path]:
    """A run on the canary's task, in a process that has not seen the canary."""
    (tmp_path / "canary.py").write_text(CANARY)
    monkeypatch.syspath_prepend(tmp_path)
    implicitq.make("miq", "canary:Canary-v0", **small).learn(40, out=tmp_path / "run").close()
    forget_canary()
    yield tmp_path / "run"
    forget_canary()


def forget_canary() -> None:
    sys.modules.pop("canary", None)
    gymnasium.registry.pop("Canary-v0", None)


def refused(*words: object) -> bool:
    return cli.run([*map(str, words)]) == 2


def test_a_policy_acts_without_its_environment(run):
    action, _ = implicitq.load(run).predict(np.zeros(3), deterministic=True)
    assert action.shape == (2,)
    assert "canary" not in sys.modules


def test_evaluating_or_filming_a_policy_runs_no_module_of_its_own_choice(run, capsys):
    for refuse in (implicitq.load(run).evaluate, lambda: video.record(implicitq.load(run), run / "film.gif")):
        with pytest.raises(InputError) as caught:
            refuse()
        assert str(caught.value) == f"the policy {SENTENCE}"
    assert refused("evaluate", run)
    assert refused("video", run / "policy.safetensors")
    assert " ".join(capsys.readouterr().err.split()).count(SENTENCE) == 2
    assert "canary" not in sys.modules


def test_the_user_can_name_or_trust_the_environment_of_a_policy(run, capsys):
    expected = implicitq.load(run, trust_env=True).evaluate(2)
    assert "canary" in sys.modules
    assert implicitq.load(run, "canary:Canary-v0").evaluate(2) == expected
    assert cli.run(["evaluate", str(run), "--env", "canary:Canary-v0", "--episodes", "1"]) == 0
    assert "miq on canary:Canary-v0" in capsys.readouterr().out
    assert cli.run(["evaluate", str(run), "--trust-env", "--episodes", "1"]) == 0
    assert refused("evaluate", run, "--env", "Pendulum-v1")
    assert "the policy is for observations in Box" in capsys.readouterr().err


def test_resuming_a_run_runs_no_module_of_its_own_choice(run, capsys):
    with pytest.raises(InputError) as caught:
        implicitq.resume(run)
    assert str(caught.value) == f"{run} {SENTENCE}"
    assert refused("resume", run)
    assert SENTENCE in " ".join(capsys.readouterr().err.split())
    assert "canary" not in sys.modules


def test_the_user_can_name_or_trust_the_environment_of_a_run(run):
    agent = implicitq.resume(run, "canary:Canary-v0")  # the refusals left no lock behind
    assert agent.step == 40
    agent.close()
    assert cli.run(["resume", str(run), "--trust-env", "--steps", "60"]) == 0
    assert implicitq.load(run).step == 60


def test_a_suite_runs_no_module_of_its_own_choice(run, suite_file, capsys):
    suite = suite_file("strange", ["canary:Canary-v0"], ["iq"], 100, 40)
    words = ["sweep", "--suite", str(suite), "--out", str(run.parent / "sweep"), "--seeds", "1", "--rate", "9"]
    assert refused(*words)
    assert refused("random-scores", run.parent / "sweep", "--suite", suite)
    told = " ".join(capsys.readouterr().err.split())
    assert "name the task yourself (--tasks), or trust the file (--trust-env)" in told
    assert "if you trust the file, add --trust-env" in told
    assert "canary" not in sys.modules
    assert cli.run([*words, "--dry-run", "--tasks", "canary:Canary-v0"]) == 0
    assert cli.run([*words, "--dry-run", "--trust-env"]) == 0
    assert "canary" in sys.modules


@pytest.mark.parametrize("name", ["a:b:c", ":X", "..os:X", "os..path:X-v0", "os:", "a b", "", "os :X", "7os:X-v0"])
def test_an_id_that_gymnasium_cannot_take_apart_is_refused_in_a_sentence(name):
    with pytest.raises(InputError, match=f"an environment is named as Id-v0 or as module:Id-v0, got '{name}'"):
        implicitq.make("miq", name)
