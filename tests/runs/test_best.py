"""The best policy of a run: kept beside the last one, and the same however often the run was interrupted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gymnasium as gym
import pytest

import implicitq
import toys
from implicitq import InputError
from implicitq.commands import main as cli
from implicitq.envs.making import EnvironmentMaker
from implicitq.evaluate import Evaluator
from implicitq.runs.layout import read_evaluations


class Waning(toys.Toy):
    """Episodes of one step, whose returns are known beforehand."""

    rewards = (1.0, 3.0, 2.0, 3.0)

    def __init__(self) -> None:
        super().__init__(end_chance=0.0, limit=1)

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.rewards[min(self.resets, len(self.rewards)) - 1], terminated, truncated, info


@pytest.fixture(scope="module")
def waned(tmp_path_factory) -> Path:
    """Evaluations of 1, 3, 2 and 3."""
    directory = tmp_path_factory.mktemp("best") / "run"
    values = {**toys.SMALL, "steps": 160, "eval_episodes": 1}
    implicitq.make("miq", toys.Toy, eval_env=Waning, **values).learn(out=directory).close()
    return directory


def test_the_best_policy_is_that_of_the_highest_evaluation_and_of_equals_the_first(waned):
    assert [done.mean for done in read_evaluations(waned)] == [1, 3, 2, 3]
    best, last = implicitq.load(waned, best=True), implicitq.load(waned)
    assert (best.step, last.step) == (80, 160)
    observation = best.observation_space.sample()
    assert best.value(observation) != last.value(observation)


def test_the_best_policy_is_the_one_that_was_evaluated(run):
    done = max(read_evaluations(run), key=lambda evaluation: evaluation.mean)
    assert implicitq.load(run, best=True, trust_env=True).evaluate(2) == done


def test_a_run_that_begins_again_has_no_best_policy_yet(waned, tmp_path):
    run = Path(shutil.copytree(waned, tmp_path / "run"))
    for path in [*(run / "checkpoints").iterdir(), run / "policy.safetensors"]:  # as before the first checkpoint
        path.unlink()
    implicitq.resume(run, toys.Toy, eval_env=Waning).close()
    assert not (run / "best.safetensors").exists()


def test_after_a_fall_back_the_file_is_of_the_checkpoint_and_not_of_what_came_later(small, tmp_path):
    class Rising(Waning):
        rewards = (1.0, 2.0, 3.0)

    values = {**small, "eval_episodes": 1}
    implicitq.make("miq", toys.Toy, eval_env=Rising, **values).learn(out=tmp_path / "run").close()
    assert implicitq.load(tmp_path / "run", best=True).step == 120
    for path in (tmp_path / "run" / "checkpoints").glob("*120.*"):
        path.unlink()
    implicitq.resume(tmp_path / "run", toys.Toy, eval_env=Rising).close()
    assert implicitq.load(tmp_path / "run", best=True).step == 80


def test_runs_of_earlier_versions_have_a_best_policy_from_their_next_evaluation_on(layout_1, tmp_path):
    run = Path(shutil.copytree(layout_1 / "sac", tmp_path / "run"))
    with pytest.raises(InputError, match=r"run has no best.safetensors: no evaluation was made yet, or only by an"):
        implicitq.load(run, best=True)
    implicitq.resume(run, inexact=True).learn(20).close()
    assert implicitq.load(run, best=True).step == 100


@pytest.mark.parametrize(
    "best", [{"step": 40}, {"step": -1, "mean": 0.0}, {"step": 40, "mean": "much"}, {"step": 40, "mean": 1e999}, 7]
)
def test_a_checkpoint_with_a_best_that_cannot_be_is_not_used(run, best):
    from implicitq.runs.atomic_files import digest_of

    path = run / "checkpoints" / "000000120.json"
    manifest = json.loads(path.read_text())
    manifest.pop("sha256")
    manifest["trainer"]["best"] = best
    path.write_text(json.dumps({**manifest, "sha256": digest_of(manifest)}))
    with pytest.warns(UserWarning, match="Going on from step 80 instead"):
        implicitq.resume(run, trust_env=True).close()


def test_the_commands_take_the_best_policy(run, capsys):
    step = implicitq.load(run, best=True).step
    assert cli.run(["evaluate", str(run), "--best", "--trust-env", "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == step
    assert cli.run(["evaluate", str(run / "policy.safetensors"), "--best", "--trust-env"]) == 2
    assert "the best policy is kept in run folders" in capsys.readouterr().err
    (run / "best.safetensors").unlink()
    for command in ("evaluate", "video", "export"):
        assert cli.run([command, str(run), "--best"]) == 2
        assert "has no best.safetensors" in capsys.readouterr().err


def test_sampled_evaluations_are_those_of_their_seed(run, capsys):
    agent = implicitq.load(run, trust_env=True)
    drawn = agent.evaluate(3, deterministic=False)
    assert drawn == agent.evaluate(3, deterministic=False)
    assert drawn.returns != agent.evaluate(3).returns
    assert drawn.returns != agent.evaluate(3, deterministic=False, seed=9).returns
    assert cli.run(["evaluate", str(run), "--stochastic", "--trust-env", "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["returns"] == list(drawn.returns)


class Window(toys.Toy):
    metadata = {"render_modes": ["human"], "render_fps": 30}  # noqa: RUF012
    windows = 0

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode
        Window.windows += render_mode == "human"


def test_a_window_shows_the_same_episodes_one_after_the_other(run, monkeypatch, capsys):
    monkeypatch.setitem(gym.registry, "Window-v0", gym.envs.registration.EnvSpec("Window-v0", Window))
    agent = implicitq.load(run, "Window-v0")
    together = agent.evaluate(4)
    assert agent.evaluate(4, render=True).lengths == together.lengths
    assert Window.windows == 1
    command = ["evaluate", str(run), "--env", "Window-v0", "--render", "human", "--episodes", "2"]
    assert cli.run(command) == 0
    assert Window.windows == 2
    with pytest.raises(InputError, match="the environment opens no window: its render_mode is None, not 'human'"):
        implicitq.load(run, toys.Toy()).evaluate(1, render=True)


@pytest.mark.parametrize("task", ["InvertedPendulum-v5", "Pendulum-v1"])
def test_without_a_screen_a_window_is_refused(task, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match=r"a window needs a screen, .* `implicitq video` writes a film instead"):
        Evaluator(EnvironmentMaker(task), 1, 0, shown=True)
    monkeypatch.setenv("DISPLAY", ":0")
    Evaluator(EnvironmentMaker(task), 1, 0, shown=True).close()
