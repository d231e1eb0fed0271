"""The DeepMind Control Suite by way of shimmy. Optional: pip install 'implicitq[dm-control]'."""

from __future__ import annotations

import numpy as np
import pytest

import implicitq
from implicitq.commands.main import run
from implicitq.envs.making import EnvironmentMaker
from implicitq.sweeps import suites
from implicitq.types import InputError

pytest.importorskip("dm_control")
pytest.importorskip("shimmy")
# Of packages that are not ours, about each other.
pytestmark = [pytest.mark.filterwarnings("ignore")]

TASK = "dm_control/cartpole-balance-v0"


def test_an_id_needs_no_prefix_and_trains_by_command(small_flags, tmp_path):
    flags = ["--env", TASK, *small_flags, "--eval-every", "1000", "--eval-episodes", "1"]
    assert run(["train", "miq", *flags, "--out", str(tmp_path / "run")]) == 0
    assert run(["evaluate", str(tmp_path / "run"), "--episodes", "1"]) == 0  # from the id in the file: a known package


def test_an_episode_ends_by_its_time_limit_and_is_repeatable():
    env = EnvironmentMaker(TASK)()
    assert env.action_space.shape == (1,)
    first = [env.reset(seed=3)[0]["position"] for _ in range(2)]
    np.testing.assert_array_equal(first[0], first[1])
    ends = [env.step(np.zeros(1))[2:4] for _ in range(1_000)]
    assert ends[-1] == (False, True)
    assert (True, False) not in ends


def test_a_stopped_run_goes_on_bit_for_bit(small, tmp_path):
    settings = {**small, "eval_episodes": 1, "eval_every": 120}
    implicitq.make("miq", TASK, **settings).learn(out=tmp_path / "whole").close()
    agent = implicitq.make("miq", TASK, **settings)
    agent.learn(out=tmp_path / "parts", listeners=[lambda event: event.step < 80 if hasattr(event, "step") else None])
    agent.close()
    implicitq.resume(tmp_path / "parts").learn().close()
    for name in ("metrics.csv", "evaluations.csv", "policy.safetensors"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("task", suites.SUITES["dmc"].tasks)
def test_every_task_of_the_suite_can_be_made(task):
    assert suites.action_kind(task) == "Box"


def test_a_task_that_there_is_not_is_refused_with_a_guess():
    with pytest.raises(InputError, match=r"unknown environment 'dm_control/cartpole-balanc-v0'; did you mean"):
        EnvironmentMaker("dm_control/cartpole-balanc-v0")()
