"""Environments that raise, die, hang, or answer with the wrong shape: a sentence, or a fresh one in their place."""

from __future__ import annotations

import contextlib
import csv
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import implicitq
import toys
from implicitq import configs, video
from implicitq.commands.main import run
from implicitq.driver import drive
from implicitq.envs.adapter import Adapter
from implicitq.envs.making import EnvironmentFailed, EnvironmentMaker
from implicitq.envs.vector import TRAINING, TrainingEnvironments, episode_seed
from implicitq.evaluate import Evaluator
from implicitq.events import Ticked
from implicitq.train import Trainer
from implicitq.types import InputError

NOTHING = np.zeros((2, 2), np.float32)


def environments(source, vectorization: str = "sync", **more) -> TrainingEnvironments:
    return TrainingEnvironments(EnvironmentMaker(source), 2, vectorization, 0, **more)


@pytest.mark.parametrize(
    ("call", "gives", "sentence"),
    [
        ("reset", np.zeros(3, np.float32), "gave ndarray in reset; Gymnasium wants 2: observation, info"),
        ("step", (0, 0.0, False, {}), "gave 4 values in step; Gymnasium wants 5: observation, reward, terminated, tr"),
        ("step", (0, np.ones(1), False, False, {}), r"gave the reward array\(\[1\.\]\) in step; it must be a number"),
        ("step", (0, None, False, False, {}), "gave the reward None in step; it must be a number"),
        ("step", (0, "1", False, False, {}), "gave the reward '1' in step; it must be a number"),
    ],
)
def test_what_gymnasium_does_not_mean_is_told_without_lines_of_ours(call, gives, sentence, monkeypatch):
    env = toys.Toy()
    adapter = Adapter(env)
    adapter.reset(0)
    monkeypatch.setattr(env, call, lambda *_, **__: gives)
    with pytest.raises(EnvironmentFailed, match=f"^the environment {sentence}"):
        adapter.reset(0) if call == "reset" else adapter.step(env.action_space.sample())


def test_a_process_for_an_environment_starts_without_modules_of_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "socket.py").write_text("raise SystemExit")  # multiprocessing imports a module of this name
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(environments("Pendulum-v1", "async")) as found:
        assert len(found.start()) == 2
    assert "PYTHONSAFEPATH" not in os.environ


def metrics(directory: Path) -> list[dict[str, str]]:
    with open(directory / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


# ------------------------------------------------------------------------------------------------- sentences


UNMADE = r"cannot be made: ZeroDivisionError: the floor gave way \(toys.py, line \d+\)"


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_constructor_that_raises_is_named_with_its_place(vectorization):
    with pytest.raises(InputError, match=f"toys:Unmakeable-v0 {UNMADE}"):
        environments("toys:Unmakeable-v0", vectorization)
    assert not multiprocessing.active_children()


def test_a_constructor_that_raises_is_named_when_resuming_evaluating_and_filming(tmp_path, small):
    agent = implicitq.make("iq", toys.Toy, **small)
    agent.learn(out=tmp_path / "run")
    agent.close()
    broken = functools.partial(toys.Fails, "raise", "init")
    for attempt in (
        lambda: implicitq.resume(tmp_path / "run", broken),
        lambda: implicitq.load(tmp_path / "run", broken),
        lambda: Evaluator(EnvironmentMaker(broken), 1, 0),
    ):
        with pytest.raises(InputError, match=f"the environment {UNMADE}"):
            attempt()
    implicitq.resume(tmp_path / "run", toys.Toy).close()  # nobody has kept the lock
    agent = implicitq.load(tmp_path / "run", toys.Toy)
    agent._eval_maker = EnvironmentMaker("toys:Unmakeable-v0")
    with pytest.raises(InputError, match="toys:Unmakeable-v0 cannot be made"):
        video.record(agent, tmp_path / "film.gif")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "HalfCheetah-v2",
            "HalfCheetah-v2 (cannot be made: ImportError: The mujoco|needs a package that is missing)",
        ),
        ("dm_control/cartpole-nonsense-v0", "dm_control/cartpole-nonsense-v0"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*out of date")  # of Gymnasium
def test_ids_that_gymnasium_only_pretends_to_know_give_a_sentence(name, sentence):
    with pytest.raises(InputError, match=sentence):
        EnvironmentMaker(name)()


def test_an_environment_that_raises_when_a_run_is_brought_back_is_named_and_costs_no_checkpoint(tmp_path, small):
    agent = implicitq.make("iq", toys.Toy, **small)
    agent.learn(out=tmp_path / "run")
    agent.close()
    with pytest.raises(InputError, match=r"the environment failed in reset: ZeroDivisionError: .* \(toys.py, line"):
        implicitq.resume(tmp_path / "run", functools.partial(toys.Fails, "raise", "reset"))
    agent = implicitq.resume(tmp_path / "run", toys.Toy)
    assert agent.step == 120  # no checkpoint was set aside for it
    agent.close()


@pytest.mark.parametrize("call", ["reset", "step", "render"])
def test_a_film_of_an_environment_that_raises_ends_in_a_sentence(call, tmp_path, small, monkeypatch):
    class Filmed(toys.Fails):
        metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012

        def __init__(self, render_mode: str | None = None) -> None:
            super().__init__("raise", call if render_mode else "never")
            self.render_mode = render_mode

        def render(self):
            self.fail_if("render")
            return np.zeros((8, 8, 3), np.uint8)

    monkeypatch.setitem(gym.registry, "Filmed-v0", gym.envs.registration.EnvSpec("Filmed-v0", Filmed))
    agent = implicitq.make("iq", "Filmed-v0", **small)
    with pytest.raises(InputError, match=f"the environment failed in {call}: ZeroDivisionError"):
        video.record(agent, tmp_path / "film.gif")
    agent.close()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_close_that_raises_is_a_warning(vectorization):
    made = environments(functools.partial(toys.Fails, "raise", "close"), vectorization)
    made.start()
    with pytest.warns(UserWarning, match=r"environment \d failed in close: ZeroDivisionError: the floor") as caught:
        made.close()
    assert len(caught) == 2
    made.close()


def test_a_close_that_raises_does_not_hide_the_first_error(small):
    class Both(toys.Breaks):
        def close(self) -> None:
            raise OSError("the door is stuck")

    agent = implicitq.make("iq", lambda: Both(30, "error"), **small)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(InputError, match="failed in step: ZeroDivisionError"), contextlib.closing(agent):
            agent.learn()
    assert "the environment failed in close: OSError: the door is stuck" in str(caught[0].message)


class Wrong(gym.Env):
    action_space = gym.spaces.Discrete(2)

    def __init__(self, space: gym.Space, observation) -> None:
        self.observation_space, self.observation = space, observation

    def reset(self, *, seed=None, options=None):
        return self.observation, {}


VECTOR = gym.spaces.Box(-1, 1, (3,))


@pytest.mark.parametrize(
    ("space", "observation", "sentence"),
    [
        (VECTOR, np.zeros(4), r"got shape \(4,\), declared is \(3,\)"),
        (VECTOR, None, r"got shape \(\), declared is \(3,\)"),
        (gym.spaces.Dict(a=VECTOR), {"a": np.zeros(2)}, r"got shape \(2,\) in 'a', declared is \(3,\)"),
        (gym.spaces.Dict(a=VECTOR), {"b": np.zeros(3)}, r"got \['b'\], declared is a dict of \['a'\]"),
        (gym.spaces.Dict(a=VECTOR), np.zeros(3), r"got ndarray, declared is a dict of \['a'\]"),
        (gym.spaces.Tuple([VECTOR]), (np.zeros(3), 1), "got a tuple of 2, declared is a tuple of 1"),
        (gym.spaces.Tuple([VECTOR]), (np.zeros(1),), r"got shape \(1,\) at 0, declared is \(3,\)"),
        (gym.spaces.Discrete(4), 4, r"a discrete observation is outside its 4 values: \[4\]"),
        (gym.spaces.Discrete(4), np.zeros(2, int), r"got shape \(2,\), declared is \(\)"),
    ],
)
def test_an_observation_that_is_not_of_its_space_is_named_with_both_shapes(space, observation, sentence):
    with pytest.raises(InputError, match=f"the environment gave an observation in reset .* its space: {sentence}"):
        Adapter(Wrong(space, observation)).reset(0)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_wrong_shape_is_named_with_its_environment(vectorization):
    made = environments(functools.partial(toys.Fails, "shape"), vectorization)
    made.start()
    with pytest.raises(InputError, match=r"environment 0 gave an observation in step .*\(4,\), declared is \(3,\)"):
        made.step(NOTHING)
    made.close()


def test_environments_side_by_side_must_be_alike():
    sources = iter([toys.Toy, toys.MultiDiscreteToy])
    with pytest.raises(InputError, match="all environments must have the same spaces: environment 1 has"):
        environments(lambda: next(sources)())


# ------------------------------------------------------------------------------------------------- processes


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("raise", r"environment 0 failed in step: ZeroDivisionError: the floor gave way \(toys.py, line \d+\)"),
        ("kill", r"the process of environment 0 was killed by signal 9 \(SIGKILL\) in step"),
        ("exit", "the process of environment 0 ended with exit code 3 in step"),
        ("hang", r"environment 0 did not answer within 2 seconds in step \(env_timeout\)"),
    ],
)
def test_what_happened_to_a_worker_is_said_and_closing_adds_nothing(how, sentence):
    made = environments(functools.partial(toys.Fails, how), "async", timeout=2.0 if how == "hang" else None)
    made.start()
    with pytest.raises(EnvironmentFailed, match=sentence):
        made.step(NOTHING)
    begun = time.monotonic()
    made.close()
    assert time.monotonic() - begun < 30
    assert not multiprocessing.active_children()


def test_repeating_an_episode_may_take_as_long_as_its_steps_did():
    slow = functools.partial(toys.Slow, 0.25)
    made = environments(slow, "async", timeout=1.0)
    made.start()
    for _ in range(8):
        observations = made.step(NOTHING).observations
    again = environments(slow, "async", timeout=1.0)
    np.testing.assert_array_equal(again.restore(made.arrays()), observations)
    for each in (made, again):
        each.close()


def test_a_constructor_that_hangs_is_named():
    with pytest.raises(InputError, match="environment 0 did not answer within 5 seconds in making"):
        environments(functools.partial(toys.Fails, "hang", "init"), "async", timeout=5.0)
    assert not multiprocessing.active_children()


def test_what_cannot_travel_to_a_process_is_refused_with_a_sentence():
    with pytest.raises(InputError, match=r"environment 0 cannot be sent to a process of its own: TypeError: .* 'sync'"):
        environments(toys.Uncopyable(), "async")


def test_a_script_without_a_main_guard_gets_one_sentence(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import implicitq\n"
        "try:\n"
        "    implicitq.make('iq', 'Pendulum-v1', vectorization='async', num_envs=2, hidden=(8,))\n"
        "except implicitq.InputError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1
    assert 'put what the script does below `if __name__ == "__main__":`' in done.stdout


def test_a_killed_worker_ends_the_command_with_its_sentence_and_keeps_the_checkpoint(small_flags, tmp_path, capsys):
    flags = [*small_flags, "--num-envs", "1", "--vectorization", "async"]
    assert run(["train", "miq", "--env", "toys:Dies-v0", *flags, "--out", str(tmp_path / "run")]) == 2
    output, errors = capsys.readouterr()
    assert "Traceback" not in errors
    assert "the process of environment 0 was killed by signal 9 (SIGKILL) in step" in " ".join(errors.split())
    assert "the last checkpoint is kept; go on from it with" in " ".join(output.split())
    assert [path.stem for path in (tmp_path / "run" / "checkpoints").glob("*.json")] == ["000000040"]


# ------------------------------------------------------------------------------------------------- a fresh one


@pytest.mark.parametrize(
    ("how", "vectorization"), [("raise", "sync"), ("raise", "async"), ("kill", "async"), ("hang", "async")]
)
@pytest.mark.parametrize("call", ["step", "reset"])
def test_a_fresh_environment_goes_on_with_the_next_seed(how, vectorization, call, tmp_path):
    source = functools.partial(toys.Fails, how, call, 2, tmp_path / "failed")
    timeout = 2.0 if how == "hang" else None
    made = environments(source, vectorization, on_error="restart", timeout=timeout)
    first = made.start()
    made.step(NOTHING)
    failed = made.step(NOTHING).failed
    begin, which = (made.restart, failed) if call == "step" else (made.next_episodes, np.array([True, True]))
    with pytest.warns(UserWarning, match=r"environment \d .*; it was made anew and goes on with its episode") as caught:
        now = begin(which)
    assert len(caught) == made.restarts == 1
    assert failed.sum() == (call == "step")
    index = int(np.argmax(made.arrays()["episodes"]))
    episode = int(made.arrays()["episodes"][index])
    assert episode == (1 if call == "step" else 2)
    expected = toys.Toy().reset(seed=episode_seed(0, TRAINING, index, episode))[0].astype(np.float32)
    np.testing.assert_array_equal(now[index], expected)
    assert not np.array_equal(now[index], first[index])
    assert not made.step(NOTHING).failed.any()
    made.close()


@pytest.mark.parametrize("call", ["step", "reset"])
def test_one_that_fails_again_at_once_stops_the_run(call, small):
    trainer = trainer_of(functools.partial(toys.Fails, "raise", call), small)
    with (
        pytest.warns(UserWarning, match="made anew"),
        pytest.raises(InputError, match=f"failed in {call}: .*, right after it was made anew"),
    ):
        drive(trainer, 10)
    trainer.close()


def test_one_that_cannot_be_made_anew_says_both(tmp_path):
    sources = iter([toys.Toy, lambda: toys.Fails("raise"), functools.partial(toys.Fails, "raise", "init")])
    made = environments(lambda: next(sources)(), on_error="restart")
    made.start()
    failed = made.step(NOTHING).failed
    with pytest.raises(InputError, match=r"environment 1 failed in step: .*; and making it anew failed: the env"):
        made.restart(failed)
    made.close()


def trainer_of(source, small, **more) -> Trainer:
    config = configs.resolve("iq", "clock", **{**small, "on_env_error": "restart", "num_envs": 2, **more})
    return Trainer(config, EnvironmentMaker(source))


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("at", [1, 5, 29])
@pytest.mark.filterwarnings("ignore:.*made anew")
def test_nothing_wrong_enters_the_replay(at, n_step, small, tmp_path):
    trainer = trainer_of(functools.partial(toys.Clock, "raise", "step", at, tmp_path / "failed"), small, n_step=n_step)
    drive(trainer, 120)
    assert trainer.envs.restarts == 1
    flags = trainer.replay._flags.reshape(2, -1)
    assert ((flags == 1) | (flags == 2)).sum() == 120  # every step of the count was made, and is there
    batch = trainer.replay.sample(4_000)
    taken = batch.next_observation[:, 1] - batch.observation[:, 1]
    np.testing.assert_array_equal(batch.next_observation[:, 0], batch.observation[:, 0])  # within one episode
    assert set(taken) <= set(range(1, n_step + 1))
    rewards = [
        sum(0.99**i * (t + i) for i in range(int(k))) for t, k in zip(batch.observation[:, 1], taken, strict=True)
    ]
    np.testing.assert_allclose(batch.reward, rewards, rtol=1e-5)
    assert set(np.round(batch.discount, 5)) <= {0, *np.round(0.99 ** np.arange(1, n_step + 1), 5).astype(np.float32)}
    trainer.close()


@pytest.mark.filterwarnings("ignore:.*made anew")
def test_the_episode_that_was_cut_bootstraps_from_the_last_observation_seen(small, tmp_path):
    source = functools.partial(toys.Clock, "raise", "step", 5, tmp_path / "failed")
    trainer = trainer_of(source, small, num_envs=1, min_replay=100)
    drive(trainer, 7)
    rows = trainer.replay.rows(np.array([0]), trainer.replay.written)
    np.testing.assert_array_equal(rows["observations"][:, 1], [0, 1, 2, 3, 4, 0, 1, 2])
    np.testing.assert_array_equal(rows["flags"], [1, 1, 1, 1, 3, 1, 1, 1])  # steps, the last one seen, steps
    assert trainer.episodes == 0  # it did not end by itself
    trainer.close()


def test_restarts_are_counted_in_the_metrics_and_a_resumed_run_goes_on_from_there(small, tmp_path):
    def begin(name: str) -> implicitq.Agent:
        source = functools.partial(toys.Fails, "raise", "step", 25, tmp_path / f"{name} failed")
        return implicitq.make("miq", source, on_env_error="restart", num_envs=2, **small)

    agents = {name: begin(name) for name in ("whole", "stopped")}
    with pytest.warns(UserWarning, match="restart 1 of this run"):
        agents["whole"].learn(out=tmp_path / "whole")
    with pytest.warns(UserWarning, match="restart 1 of this run"):
        agents["stopped"].learn(
            60, out=tmp_path / "stopped", listeners=[lambda e: not isinstance(e, Ticked) or e.step < 58]
        )
    for agent in agents.values():
        agent.close()
    resumed = implicitq.resume(tmp_path / "stopped", toys.Toy)
    resumed.learn()
    resumed.close()
    assert {row["env_restarts"] for row in metrics(tmp_path / "whole")} == {"0", "1"}
    for name in ("metrics.csv", "evaluations.csv", "policy.safetensors"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_without_failures_restart_and_timeout_change_nothing(vectorization, small, tmp_path):
    settings = {**small, "num_envs": 2, "vectorization": vectorization}
    careful = {"on_env_error": "restart", "env_timeout": 60.0 if vectorization == "async" else None}
    for name, more in (("plain", {}), ("careful", careful)):
        agent = implicitq.make("miq", "toys:Toy-v0", **settings, **more)
        agent.learn(out=tmp_path / name)
        agent.close()
    plain, other = metrics(tmp_path / "plain"), metrics(tmp_path / "careful")
    assert "env_restarts" not in plain[0]
    assert [row.pop("env_restarts") for row in other] == ["0"] * len(plain)
    assert plain == other
    evaluations = [(tmp_path / name / "evaluations.csv").read_bytes() for name in ("plain", "careful")]
    assert evaluations[0] == evaluations[1]


def test_a_worker_killed_from_outside_is_replaced(small, tmp_path):
    killed = []

    def kill(event) -> None:
        if isinstance(event, Ticked) and event.step == 60:
            killed.append(next(child for child in multiprocessing.active_children() if "environment 1" in child.name))
            os.kill(killed[0].pid, signal.SIGKILL)

    settings = {**small, "num_envs": 2, "vectorization": "async", "on_env_error": "restart"}
    agent = implicitq.make("miq", "toys:Toy-v0", **settings)
    with pytest.warns(UserWarning, match=r"the process of environment 1 was killed by signal 9 \(SIGKILL\) in"):
        agent.learn(out=tmp_path / "run", listeners=[kill])
    agent.close()
    assert agent.step == 120
    assert metrics(tmp_path / "run")[-1]["env_restarts"] == "1"


def test_a_worker_that_fails_while_the_run_is_brought_back_gets_a_second_try(tmp_path):
    original = environments(toys.Toy)
    original.start()
    newest = [original.step(NOTHING) for _ in range(3)][-1].observations
    source = functools.partial(toys.Fails, "raise", "step", 2, tmp_path / "failed")
    made = environments(source, on_error="restart")
    with pytest.warns(UserWarning, match="failed in repeating the steps of its episode"):
        np.testing.assert_array_equal(made.restore(original.arrays()), newest)
    assert made.arrays()["episodes"].tolist() == original.arrays()["episodes"].tolist()


# ------------------------------------------------------------------------------------------------- settings


def test_a_timeout_needs_processes():
    with pytest.raises(InputError, match="env_timeout must be None with vectorization 'sync', got"):
        configs.resolve("iq", "Pendulum-v1", env_timeout=3.0)
    for wrong in (0.0, -1.0, float("inf"), "soon"):
        with pytest.raises(InputError, match="env_timeout must be"):
            configs.resolve("iq", "Pendulum-v1", vectorization="async", env_timeout=wrong)
    with pytest.raises(InputError, match="on_env_error must be 'stop' or 'restart', got 'ignore'"):
        configs.resolve("iq", "Pendulum-v1", on_env_error="ignore")


def test_files_from_before_these_settings_load():
    data = configs.to_json(configs.resolve("iq", "Pendulum-v1"))
    del data["on_env_error"], data["env_timeout"]
    assert configs.from_json(data) == configs.resolve("iq", "Pendulum-v1")
