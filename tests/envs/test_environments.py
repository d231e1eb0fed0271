from __future__ import annotations

import logging
import os
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import implicitq
import toys
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
