"""Making environments, one or many, and by their ids: from a module of the working folder, from a package of ours."""

from __future__ import annotations

import logging
import os
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
import toys
from implicitq import video
from implicitq.commands import main as cli
from implicitq.envs import making as envs
from implicitq.envs.making import EnvironmentMaker
from implicitq.envs.vector import TRAINING, TrainingEnvironments, episode_seed
from implicitq.types import InputError


def make_envs(source, num_envs: int = 1, vectorization: str = "sync", seed: int = 0) -> TrainingEnvironments:
    return TrainingEnvironments(EnvironmentMaker(source), num_envs, vectorization, seed)


def coordinates_for(made: TrainingEnvironments, generator: np.random.Generator) -> np.ndarray:
    count, spec = len(made.arrays()["episodes"]), made.spec
    if spec.categories is None:
        return generator.uniform(-1, 1, (count, spec.action_dimensions)).astype(np.float32)
    return generator.integers(spec.categories, size=(count, spec.action_dimensions))


def play(made: TrainingEnvironments, generator: np.random.Generator, steps: int) -> list[np.ndarray]:
    """All that comes out of the environments, starting new episodes where one has ended."""
    stream = []
    for _ in range(steps):
        step = made.step(coordinates_for(made, generator))
        stream += [step.observations, step.rewards, step.terminated, step.truncated]
        ended = step.terminated | step.truncated
        if ended.any():
            stream.append(made.next_episodes(ended))
    return stream


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def test_every_episode_has_a_seed_of_its_own():
    keys = [(r, s, e, k) for r in range(3) for s in range(3) for e in range(4) for k in range(50)]
    seeds = [episode_seed(*key) for key in keys]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seeds == [episode_seed(*key) for key in keys]


def test_episodes_start_from_the_seeds_of_their_environment_and_number():
    made = make_envs(toys.Toy, 2, seed=7)

    def first(environment: int, episode: int) -> np.ndarray:
        return toys.Toy().reset(seed=episode_seed(7, TRAINING, environment, episode))[0].astype(np.float32)

    np.testing.assert_array_equal(made.start(), [first(0, 0), first(1, 0)])
    stay = made.step(np.zeros((2, 2))).observations[1]
    np.testing.assert_array_equal(made.next_episodes(np.array([True, False])), [first(0, 1), stay])
    np.testing.assert_array_equal(made.next_episodes(np.array([True, True])), [first(0, 2), first(1, 1)])


@pytest.mark.parametrize(
    ("source", "num_envs", "steps"),
    [
        ("Pendulum-v1", 1, 230),
        ("HalfCheetah-v5", 1, 30),
        ("CartPole-v1", 2, 40),
        (toys.Toy, 3, 25),
        (toys.DictToy, 2, 25),
        (toys.MultiDiscreteToy, 1, 28),
        (toys.ChangesActions, 2, 25),
    ],
)
def test_environments_come_back_exactly_where_they_were(source, num_envs, steps):
    original, restored = make_envs(source, num_envs), make_envs(source, num_envs)
    generator = np.random.default_rng(0)
    observations = [original.start(), *play(original, generator, steps)]
    assert any(len(taken) > 0 for name, taken in original.arrays().items() if name.startswith("actions"))
    restored.start()
    play(restored, np.random.default_rng(99), 3)
    arrays = {name: array.copy() for name, array in original.arrays().items()}
    back = restored.restore(arrays)
    newest = observations[-4] if observations[-1].dtype == bool else observations[-1]
    np.testing.assert_array_equal(back, newest)
    assert_same(list(restored.arrays().values()), list(original.arrays().values()))
    again = np.random.default_rng(5), np.random.default_rng(5)
    assert_same(play(original, again[0], 20), play(restored, again[1], 20))
    assert_same(list(original.arrays().values()), list(restored.arrays().values()))
    original.close()
    restored.close()


def test_sync_and_async_environments_give_the_same_stream_and_restore_each_other():
    sync, parallel = make_envs("toys:Toy-v0", 2), make_envs("toys:Toy-v0", 2, "async")
    try:
        one = [sync.start(), *play(sync, np.random.default_rng(0), 40)]
        other = [parallel.start(), *play(parallel, np.random.default_rng(0), 40)]
        assert_same(one, other)
        assert sync.arrays()["episodes"].min() > 0
        play(sync, np.random.default_rng(1), 5)
        parallel.restore(sync.arrays())
        assert_same(play(sync, np.random.default_rng(2), 20), play(parallel, np.random.default_rng(2), 20))
    finally:
        parallel.close()


def test_terminated_and_truncated_are_kept_apart():
    always_ends, never_ends = lambda: toys.Toy(end_chance=1.0), lambda: toys.Toy(end_chance=0.0, limit=1)
    for source, expected in ((always_ends, (True, False)), (never_ends, (False, True))):
        made = make_envs(source)
        made.start()
        step = made.step(np.zeros((1, 2)))
        assert (bool(step.terminated[0]), bool(step.truncated[0])) == expected


def test_actions_reach_the_environment_within_its_own_bounds():
    seen = []

    class Watch(toys.Toy):
        def step(self, action):
            seen.append(np.array(action))
            return super().step(action)

    made = make_envs(Watch)
    made.start()
    made.step(np.array([[-1.0, 1.0]]))
    np.testing.assert_allclose(seen[0], [-1.0, 5.0])


def test_an_unknown_id_gets_the_nearest_known_one():
    with pytest.raises(InputError, match=r"unknown environment 'HalfCheeta-v5'; did you mean 'HalfCheetah-v5'\?"):
        make_envs("HalfCheeta-v5")
    with pytest.raises(InputError, match=r"unknown environment 'qqqq'; gymnasium knows \d+, such as"):
        make_envs("qqqq")


def test_an_outdated_version_is_refused_with_a_sentence():
    with pytest.warns(DeprecationWarning, match="out of date"), pytest.raises(InputError, match="'Pendulum-v1'"):
        make_envs("Pendulum-v0")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(envs.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="AdroitHandDoor-v1 needs the package gymnasium_robotics; install it with"):
        make_envs("AdroitHandDoor-v1")

    def not_installed(name: str, **_):
        raise gym.error.DependencyNotInstalled("box of parts is not installed")

    monkeypatch.setattr(envs.gym, "make", not_installed)
    with pytest.raises(InputError, match="Pendulum-v1 needs a package that is missing: box of parts"):
        make_envs("Pendulum-v1")


def test_an_object_is_used_itself_and_then_copied():
    original = toys.Toy()
    maker = EnvironmentMaker(original)
    assert maker() is original
    assert maker() is not original
    assert maker.of_copies()() is not original
    made = make_envs(original, 3)
    made.start()
    assert original.resets == 1


def test_a_function_is_called_for_every_environment():
    calls = []

    def source() -> gym.Env:
        calls.append(None)
        return toys.Toy()

    make_envs(source, 3)
    assert len(calls) == 3


def test_an_object_that_cannot_be_copied_is_fine_alone_and_made_again_from_its_spec():
    make_envs(toys.Uncopyable()).start()
    with pytest.raises(InputError, match=r"can neither be copied nor made again .* give a function"):
        make_envs(toys.Uncopyable(), 2)
    gym.register("Uncopyable-v0", toys.Uncopyable)
    made = make_envs(gym.make("Uncopyable-v0"), 2)
    assert made.start().shape == (2, 3)


@pytest.mark.parametrize("source", [3, None])
def test_what_is_no_environment_is_refused(source):
    with pytest.raises(InputError, match=r"env must be an id, a gymnasium.Env or a function that makes one"):
        EnvironmentMaker(source)
    with pytest.raises(InputError, match=r"the env function must return a gymnasium.Env, got int"):
        make_envs(lambda: 3)


def test_names_say_whether_the_id_alone_brings_the_environment_back():
    wrapped = gym.wrappers.ClipReward(gym.make("Pendulum-v1"), -1, 1)
    assert EnvironmentMaker("Pendulum-v1").name == "Pendulum-v1"
    assert EnvironmentMaker(gym.make("Pendulum-v1")).name == "Pendulum-v1"
    assert EnvironmentMaker(gym.make("Pendulum-v1", render_mode="rgb_array")).name == "Pendulum-v1"
    assert EnvironmentMaker(gym.make("Pendulum-v1", max_episode_steps=5)).name == "object:Pendulum-v1"
    assert EnvironmentMaker(wrapped).name == "object:Pendulum-v1"
    assert EnvironmentMaker(toys.Toy()).name == "object:Toy"
    assert EnvironmentMaker(toys.Toy).name == "object:Toy"


def test_spaces_that_do_not_fit_are_refused_when_environments_are_made():
    class Camera(toys.Toy):
        observation_space = gym.spaces.Box(0, 1, (4, 4, 3))

    with pytest.raises(InputError, match="look like images"):
        make_envs(Camera)


def test_an_environment_that_raises_gives_a_sentence_with_the_place_and_the_cause():
    made = make_envs(lambda: toys.Breaks(2, "error"))
    made.start()
    made.step(np.zeros((1, 2)))
    with pytest.raises(InputError, match=r"the environment failed in step: ZeroDivisionError: .* \(toys.py, line") as e:
        made.step(np.zeros((1, 2)))
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_mujoco_s_warnings_are_logged_instead_of_printed(caplog, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = EnvironmentMaker("HalfCheetah-v5")()
    made.reset(seed=0)
    assert capfd.readouterr().err == ""
    with caplog.at_level(logging.WARNING):
        made.unwrapped.data.qpos[:] = np.nan  # pyright: ignore
        made.unwrapped.do_simulation(np.zeros(6), 1)  # pyright: ignore
    assert "The simulation is unstable" in caplog.text
    assert os.listdir(tmp_path) == []


class Filmed(toys.Toy):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012
    render_mode = "rgb_array"

    def render(self) -> np.ndarray:
        return np.zeros((32, 32, 3), np.uint8)


@pytest.mark.filterwarnings("ignore")  # of the packages that write films
def test_recorded_videos_of_training_are_written(tmp_path: Path, small):
    pytest.importorskip("moviepy")

    def source() -> gym.Env:
        return gym.wrappers.RecordVideo(Filmed(), str(tmp_path / "films"), episode_trigger=lambda n: n == 1)

    implicitq.make("miq", source, eval_env=Filmed, **small).learn().close()
    assert [path.name for path in (tmp_path / "films").glob("*.mp4")] == ["rl-video-episode-1.mp4"]


# Ids: from a module of the working folder, from a package of ours, and none at all.


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
        ("toys:Tow-v0", None, r"unknown environment 'toys:Tow-v0'; did you mean 'toys:Toy-v0'\?"),
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
