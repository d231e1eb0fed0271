"""A run that goes on with other settings: it may where nothing has another shape, and its folder says so."""

from __future__ import annotations

import json
import shutil

import jax
import numpy as np
import pytest

import implicitq
from implicitq import InputError
from implicitq.commands import main as cli
from implicitq.commands.parsing import split_hyperparameters
from implicitq.configs import ALGORITHMS
from implicitq.runs import branches
from implicitq.runs.finding import find_runs
from implicitq.runs.layout import read_config, read_evaluations
from implicitq.sweeps.collecting import collect


def test_a_branch_learns_with_the_new_settings_and_is_noted(run, capsys):
    command = ["resume", str(run), "--trust-env", "--steps", "160", "--learning-rate", "1e-2", "--eval-every", "10"]
    assert cli.run(command) == 0
    assert "with other settings from here on: learning_rate 0.01, eval_every 10" in capsys.readouterr().out
    assert json.loads((run / "branches.json").read_text()) == [
        {"step": 120, "changes": {"learning_rate": [3e-4, 1e-2], "eval_every": [40, 10]}}
    ]
    assert read_config(run).learning_rate == 1e-2
    assert [done.step for done in read_evaluations(run)] == [40, 80, 120, 130, 140, 150, 160]
    implicitq.resume(run, trust_env=True).close()  # which is a run like any other


def test_a_branch_that_dies_goes_on_as_one_that_did_not(run, tmp_path, files_of):
    other = shutil.copytree(run, tmp_path / "other")
    implicitq.resume(run, trust_env=True, steps=160, learning_rate=1e-2).learn().close()
    implicitq.resume(other, trust_env=True, steps=160, learning_rate=1e-2).close()  # before its first checkpoint
    implicitq.resume(other, trust_env=True).learn().close()
    assert files_of(run) == files_of(other)


def test_what_is_not_learnt_may_change_without_a_branch(run):
    implicitq.resume(run, trust_env=True, steps=140, checkpoint_every=10, log_every=5).learn().close()
    assert not (run / "branches.json").exists()
    assert read_config(run).log_every == 5


def test_a_run_that_falls_back_behind_its_branch_says_where_it_begins_now(run):
    implicitq.resume(run, trust_env=True, learning_rate=1e-2).close()
    for path in (run / "checkpoints").glob("*120.*"):
        path.unlink()
    implicitq.resume(run, trust_env=True).close()
    assert [branch.step for branch in branches.read(run)] == [80]


def test_a_branch_that_was_noted_but_not_begun_is_forgotten(run):
    before = (run / "config.json").read_text()
    implicitq.resume(run, trust_env=True, learning_rate=1e-2).close()
    (run / "config.json").write_text(before)  # as if the process had died between the two files
    implicitq.resume(run, trust_env=True, discount=0.5).close()
    assert [branch.changes for branch in branches.read(run)] == [{"discount": [0.99, 0.5]}]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": (16,)}, r"hidden cannot change in a run that goes on \(it is \(8,\)\): begin a new run"),
        ({"eval_episodes": 9}, "eval_episodes cannot change"),
        ({"learning_rate": -1.0}, "learning_rate must be a positive number, got -1.0"),
        ({"lr": 1.0}, "miq has no hyperparameter 'lr'; did you mean 'learning_rate'?"),
        ({"alpha": 0.0}, "can be used: the saved state has 'algorithm.target.policy.* begin a new run with alpha"),
    ],
)
def test_what_cannot_change_is_refused_and_nothing_is_touched(run, files_of, changes, words):
    before = files_of(run)
    with pytest.raises(InputError, match=words.replace("?", r"\?")):
        implicitq.resume(run, trust_env=True, **changes)
    assert files_of(run) == before


def test_the_report_and_a_table_know_a_branch(run, tmp_path):
    implicitq.resume(run, trust_env=True, steps=160, learning_rate=1e-2).learn().close()
    (found,) = find_runs(tmp_path).runs
    assert found.branches == ("from step 120 with learning_rate 0.0003 -> 0.01",)
    from implicitq.reports.reading import gather

    assert any("run is a branch: it went on from step 120" in note for note in gather(tmp_path).notes)
    with pytest.raises(InputError, match="run is broken: a branch, which no seed gives: from step 120"):
        collect(tmp_path, tmp_path / "table")


@pytest.mark.parametrize("content", ["{}", '[{"step": 1}]', '[{"step": 1, "changes": {"discount": 3}}]'])
def test_a_note_that_is_none_is_said(run, content):
    (run / "branches.json").write_text(content)
    with pytest.raises(InputError, match=r"branches.json must be a list of entries"):
        implicitq.resume(run, trust_env=True)


def test_flags_of_hyperparameters_are_told_from_those_of_the_command():
    words = ["--learning-rate", "1e-4", "DIR", "--steps", "9", "--hidden", "8", "8", "--eval-every=5", "--inexact"]
    own, rest = split_hyperparameters(words, {"steps", "inexact"})
    assert own == ["--learning-rate", "1e-4", "--hidden", "8", "8", "--eval-every=5"]
    assert rest == ["DIR", "--steps", "9", "--inexact"]


BOX_OR_CHOICE = {name: "toys:DiscreteToy-v0" if "dqn" in name else "toys:Toy-v0" for name in ALGORITHMS}


def parameters(agent: implicitq.Agent) -> dict[str, np.ndarray]:
    return agent._actor.arrays()


@pytest.mark.parametrize("algorithm", ["miq", "iq-auto", "sac", "mdqn"])
def test_networks_targets_and_averages_begin_with_the_policy(algorithm, small, tmp_path):
    values = {**small, "normalize_observations": True}
    if "dqn" in algorithm or algorithm == "sac":
        values.pop("bins")
    env = BOX_OR_CHOICE[algorithm]
    with implicitq.make(algorithm, env, **values) as first:
        first.learn(40).save(tmp_path / "first.policy")
    with implicitq.make(algorithm, env, seed=7, **values) as agent:
        agent.start_from(tmp_path / "first.policy")
        known = parameters(implicitq.load(tmp_path / "first.policy", trust_env=True))
        assert parameters(agent).keys() == known.keys()
        assert all(np.array_equal(array, known[name]) for name, array in parameters(agent).items())
        state = jax.tree.unflatten(agent._trainer.learner._structure, agent._trainer.learner._unpacked()).algorithm
        online = {array.tobytes() for array in map(np.asarray, jax.tree.leaves(state.online))}
        assert {array.tobytes() for array in map(np.asarray, jax.tree.leaves(state.target))} <= online
        assert agent.learn(30).step == 30


def test_a_run_that_dies_before_its_first_checkpoint_begins_with_the_policy_again(run, small, tmp_path, files_of):
    for name in ("whole", "part"):
        agent = implicitq.make("miq", "toys:Toy-v0", seed=3, **small).start_from(run)
        agent.learn(0 if name == "part" else None, out=tmp_path / name)
        agent.close()
    implicitq.resume(tmp_path / "part", trust_env=True).learn().close()
    assert files_of(tmp_path / "part") == files_of(tmp_path / "whole")
    noted = json.loads((tmp_path / "whole" / "branches.json").read_text())
    assert noted == [{"step": 0, "changes": {"initial policy": [None, "miq on toys:Toy-v0, seed 0, after 120 steps"]}}]
    (found,) = (each for each in find_runs(tmp_path).runs if each.name == "whole")
    assert found.branches == ("from step 0 with initial policy None -> 'miq on toys:Toy-v0, seed 0, after 120 steps'",)
    implicitq.resume(tmp_path / "whole", trust_env=True, steps=140, learning_rate=1e-2).learn().close()
    assert len(json.loads((tmp_path / "whole" / "branches.json").read_text())) == 2


def test_the_command_takes_a_run_or_a_file_and_says_what_does_not_fit(run, small_flags, tmp_path, capsys):
    words = ["train", "miq", "--env", "toys:Toy-v0", *small_flags]
    assert cli.run([*words, "--from", str(run / "best.safetensors"), "--out", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "start.safetensors").exists()
    capsys.readouterr()
    assert cli.run([*words, "--bins", "5", "--from", str(run), "--out", str(tmp_path / "other")]) == 2
    assert "does not fit this agent: the saved state has float32[" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "other").exists()


def test_a_run_that_has_begun_cannot_start_from_a_policy(run, small):
    with implicitq.make("miq", "toys:Toy-v0", **small) as agent:
        agent.learn(20)
        with pytest.raises(InputError, match="start_from is for an agent that came from make, before its first step"):
            agent.start_from(run)
