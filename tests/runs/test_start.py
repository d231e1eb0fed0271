"""Runs that begin with the weights of a policy."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

import implicitq
from implicitq import InputError
from implicitq.commands import main as cli
from implicitq.configs import ALGORITHMS
from implicitq.runs.finding import find_runs

BOX_OR_CHOICE = {name: "toys:DiscreteToy-v0" if "dqn" in name else "toys:Toy-v0" for name in ALGORITHMS}


def parameters(agent: implicitq.Agent) -> dict[str, np.ndarray]:
    return agent._actor.arrays()


@pytest.mark.parametrize("algorithm", ["miq", "miq-auto", "sac", "mdqn"])
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
        state = jax.tree.unflatten(agent._trainer.learner._structure, agent._trainer.learner.leaves).algorithm
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
