"""Tasks of other packages: Adroit of gymnasium-robotics with our corrections, and the DeepMind Control Suite."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

import implicitq
from implicitq.commands import main as cli
from implicitq.envs.making import EnvironmentMaker
from implicitq.sweeps import suites
from implicitq.types import InputError

INSTALLED = importlib.util.find_spec("gymnasium_robotics") is not None
needs_robotics = pytest.mark.skipif(not INSTALLED, reason="gymnasium-robotics is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # what importing gymnasium_robotics brings is not ours


def distance(a, b) -> float:
    return float(np.linalg.norm(np.asarray(a) - np.asarray(b)))


def door(raw) -> float:
    data, hinge = raw.data, float(raw.data.qpos[raw.door_hinge_addrs])
    reach = distance(data.site_xpos[raw.grasp_site_id], data.site_xpos[raw.handle_site_id])
    bonus = 2 * (hinge > 0.2) + 8 * (hinge > 1.0) + 10 * (hinge > 1.35)
    return -0.1 * reach - 0.1 * (hinge - 1.57) ** 2 - 1e-5 * float(np.sum(data.qvel**2)) + bonus


def hammer(raw) -> float:
    data = raw.data
    body, palm = data.xpos[raw.obj_body_id], data.site_xpos[raw.S_grasp_site_id]
    head, nail, goal = (data.site_xpos[i] for i in (raw.tool_site_id, raw.target_obj_site_id, raw.goal_site_id))
    left = distance(nail, goal)
    bonus = 2 * (body[2] > 0.04 and head[2] > 0.04) + 25 * (left < 0.02) + 75 * (left < 0.01)
    return -0.1 * distance(palm, body) - distance(head, nail) - 10 * left - 1e-2 * np.linalg.norm(data.qvel) + bonus


def relocate(raw) -> float:
    data = raw.data
    ball, palm, goal = (
        data.xpos[raw.obj_body_id],
        *(data.site_xpos[i] for i in (raw.S_grasp_site_id, raw.target_obj_site_id)),
    )
    lifted = (1 - 0.5 * distance(palm, goal) - 0.5 * distance(ball, goal)) * (ball[2] > 0.04)
    return -0.1 * distance(palm, ball) + lifted + 10 * (distance(ball, goal) < 0.1) + 20 * (distance(ball, goal) < 0.05)


@needs_robotics
@pytest.mark.parametrize(
    ("task", "formula"), [("AdroitHandDoor", door), ("AdroitHandHammer", hammer), ("AdroitHandRelocate", relocate)]
)
def test_the_reward_is_that_of_the_formula_in_every_state(task, formula):
    from implicitq.envs import adroit

    env = EnvironmentMaker(adroit.current_id(task))()
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(60):
        _, reward, *_ = env.step(env.action_space.sample())
        assert reward == pytest.approx(formula(env.unwrapped), abs=1e-9)
    env.close()


@needs_robotics
@pytest.mark.parametrize("task", ["AdroitHandDoor", "AdroitHandHammer", "AdroitHandRelocate"])
def test_coming_closer_pays(task):
    """The same state, but for the sign: ours and upstream's differ by twice the reach term."""
    from implicitq.envs import adroit

    ours, theirs = EnvironmentMaker(f"implicitq/{task}-v1")(), EnvironmentMaker(f"{task}-v1")()
    for env in (ours, theirs):
        env.reset(seed=3)
    action = np.zeros(ours.action_space.shape)
    corrected, flawed = float(ours.step(action)[1]), float(theirs.step(action)[1])
    wrapper = ours
    while not isinstance(wrapper, adroit.ReachCorrected):
        wrapper = wrapper.env  # pyright: ignore
    assert flawed - corrected == pytest.approx(0.2 * wrapper.reach_distance())
    assert wrapper.reach_distance() > 0.01
    for env in (ours, theirs):
        env.close()


@needs_robotics
def test_episodes_last_200_steps():
    env = EnvironmentMaker("implicitq/AdroitHandDoor-v1")()
    env.reset(seed=0)
    ends = [env.step(np.zeros(28))[2:4] for _ in range(200)]
    assert ends[-2:] == [(False, False), (False, True)]
    env.close()


@needs_robotics
def test_the_pen_task_ends_with_a_drop_or_after_100_steps():
    ours, theirs = EnvironmentMaker("implicitq/AdroitHandPen-v1")(), EnvironmentMaker("AdroitHandPen-v1")()
    for env in (ours, theirs):
        env.reset(seed=0)
        env.action_space.seed(0)
    dropped = False
    while not dropped:  # random actions throw it out of the hand within 100 steps
        action = ours.action_space.sample()
        _, reward, dropped, truncated, _ = ours.step(action)
        _, same, terminated, _, _ = theirs.step(action)
        raw = ours.unwrapped
        assert dropped == (raw.data.xpos[raw.obj_body_id][2] < 0.075)  # pyright: ignore
        assert (reward, terminated, truncated) == (same, False, False)
    ours.reset(seed=0)
    ours.unwrapped.model.opt.gravity[:] = 0  # now it stays  # pyright: ignore
    ends = [ours.step(np.zeros(24))[2:4] for _ in range(100)]
    assert ends[-2:] == [(False, False), (False, True)]
    ours.close()
    theirs.close()


@needs_robotics
def test_the_suite_uses_fixed_ids_of_upstream_once_they_are_there(monkeypatch):
    assert suites.suite_of("adroit").tasks[0] == "implicitq/AdroitHandDoor-v1"
    fixed = {**gym.registry, "AdroitHandDoor-v2": gym.registry["AdroitHandDoor-v1"]}
    monkeypatch.setattr(gym, "registry", fixed)
    assert suites.suite_of("adroit").tasks == (
        "AdroitHandDoor-v2",
        "implicitq/AdroitHandHammer-v1",
        "implicitq/AdroitHandPen-v1",
    )


@pytest.mark.skipif(INSTALLED, reason="gymnasium-robotics is installed")
def test_without_the_package_the_extra_is_named():
    for ask in (lambda: suites.suite_of("adroit"), EnvironmentMaker("implicitq/AdroitHandDoor-v1")):
        with pytest.raises(InputError, match=r"pip install 'implicitq\[adroit\]'"):
            ask()


CONTROL = "dm_control/cartpole-balance-v0"


@pytest.fixture
def dm_control():
    """The DeepMind Control Suite by way of shimmy. Optional: pip install 'implicitq[dm-control]'."""
    pytest.importorskip("dm_control")
    pytest.importorskip("shimmy")


@pytest.mark.usefixtures("dm_control")
def test_an_id_needs_no_prefix_and_trains_by_command(small_flags, tmp_path):
    flags = ["--env", CONTROL, *small_flags, "--eval-every", "1000", "--eval-episodes", "1"]
    assert cli.run(["train", "miq", *flags, "--out", str(tmp_path / "run")]) == 0
    assert (
        cli.run(["evaluate", str(tmp_path / "run"), "--episodes", "1"]) == 0
    )  # from the id in the file: a known package


@pytest.mark.usefixtures("dm_control")
def test_an_episode_ends_by_its_time_limit_and_is_repeatable():
    env = EnvironmentMaker(CONTROL)()
    assert env.action_space.shape == (1,)
    first = [env.reset(seed=3)[0]["position"] for _ in range(2)]
    np.testing.assert_array_equal(first[0], first[1])
    ends = [env.step(np.zeros(1))[2:4] for _ in range(1_000)]
    assert ends[-1] == (False, True)
    assert (True, False) not in ends


@pytest.mark.usefixtures("dm_control")
def test_a_stopped_run_goes_on_bit_for_bit(small, tmp_path):
    settings = {**small, "eval_episodes": 1, "eval_every": 120}
    implicitq.make("miq", CONTROL, **settings).learn(out=tmp_path / "whole").close()
    agent = implicitq.make("miq", CONTROL, **settings)
    agent.learn(out=tmp_path / "parts", listeners=[lambda event: event.step < 80 if hasattr(event, "step") else None])
    agent.close()
    implicitq.resume(tmp_path / "parts").learn().close()
    for name in ("metrics.csv", "evaluations.csv", "policy.safetensors"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.usefixtures("dm_control")
@pytest.mark.parametrize("task", suites.SUITES["dmc"].tasks)
def test_every_task_of_the_suite_can_be_made(task):
    assert suites.action_kind(task) == "Box"


@pytest.mark.usefixtures("dm_control")
def test_a_task_that_there_is_not_is_refused_with_a_guess():
    with pytest.raises(InputError, match=r"unknown environment 'dm_control/cartpole-balanc-v0'; did you mean"):
        EnvironmentMaker("dm_control/cartpole-balanc-v0")()


@pytest.mark.usefixtures("dm_control")
def test_without_a_screen_nothing_is_said_of_it():
    code = f"from implicitq.envs.making import EnvironmentMaker; EnvironmentMaker({CONTROL!r})()"
    hidden = {"DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"}
    rest = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run([sys.executable, "-c", code], env=rest, capture_output=True, text=True, check=True)
    assert done.stderr == ""
