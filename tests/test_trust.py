"""A file cannot choose which module runs: a canary module beside it is imported only when the user asks for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import implicitq
from implicitq import video
from implicitq.commands import main as cli
from implicitq.types import InputError

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
