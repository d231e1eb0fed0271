"""Actions without bounds: refused with a way out, and the way out."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

import implicitq
import toys
from implicitq import configs
from implicitq.commands.main import run
from implicitq.envs.making import EnvironmentMaker
from implicitq.types import InputError


class Unbounded(toys.Toy):
    """Its second action has no end, its third none upwards."""

    action_space = gs.Box(np.array([-2, -np.inf, 0], np.float32), np.array([3, np.inf, np.inf], np.float32))
    most = 0.0

    def step(self, action):
        assert action in gs.Box(np.array([-2, -1.5, 0], np.float32), np.array([3, 1.5, 1.5], np.float32))
        Unbounded.most = max(Unbounded.most, abs(action[1]))
        return super().step(action)


gym.register("Unbounded-v0", Unbounded)


def test_the_sentence_about_unbounded_actions_names_a_way_out_that_works(small, small_flags, tmp_path, capsys):
    with pytest.raises(InputError, match=r"action dimension 1 is unbounded .*--action-bound 1.0 \(action_bound=1.0 in"):
        implicitq.make("miq", Unbounded, **small)
    flags = ["--env", "Unbounded-v0", "--action-bound", "1.5", *small_flags, "--out", str(tmp_path / "run")]
    assert run(["train", "miq", *flags]) == 0
    assert Unbounded.most == pytest.approx(1.0)  # the centre of the outermost of three bins
    assert run(["evaluate", str(tmp_path / "run"), "--episodes", "1"]) == 0  # the bound is the policy's


def test_only_what_has_no_bound_gets_one_and_the_policy_keeps_it(small, tmp_path):
    agent = implicitq.make("miq", Unbounded(), action_bound=1.5, **small)
    expected = gs.Box(np.array([-2, -1.5, 0], np.float32), np.array([3, 1.5, 1.5], np.float32))
    assert agent.action_space == expected
    agent.save(tmp_path / "one.policy")
    agent.close()
    loaded = implicitq.load(tmp_path / "one.policy", Unbounded)
    assert loaded.action_space == expected
    assert loaded.evaluate(1).lengths[0] > 0
    toy = toys.Toy()
    assert EnvironmentMaker(toy, action_bound=1.0)() is toy
    assert EnvironmentMaker(toys.DiscreteToy, action_bound=1.0)().action_space == toys.DiscreteToy.action_space


def test_bounds_that_leave_nothing_or_are_none_are_refused():
    class Far(toys.Toy):
        action_space = gs.Box(np.float32(5), np.float32(np.inf), (1,))

    with pytest.raises(InputError, match=r"action_bound 2 leaves nothing of action dimension 0, .* from 5.0 to inf"):
        EnvironmentMaker(Far, action_bound=2.0)()
    for wrong in (0.0, -1.0, float("inf"), "wide"):
        with pytest.raises(InputError, match="action_bound must be"):
            configs.resolve("iq", "Pendulum-v1", action_bound=wrong)
