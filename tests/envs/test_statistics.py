"""Wrappers with running statistics: a policy is shown with those that it was trained with, and they are frozen."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import implicitq
import toys
from implicitq import InputError
from implicitq.commands import main as cli
from implicitq.envs import statistics, vector
from implicitq.envs.making import EnvironmentFailed, EnvironmentMaker
from implicitq.envs.statistics import Statistics
from implicitq.envs.vector import TrainingEnvironments
from implicitq.evaluate import Evaluator
from implicitq.runs import policy_file
from implicitq.runs.files import read_arrays
from implicitq.video import record

OBSERVATIONS, RETURNS = "NormalizeObservation.obs_rms", "NormalizeReward.return_rms"
MADE: list[gym.Env] = []  # by `source`, in this process


def source() -> gym.Env:
    """Rewards around 100, so that it shows whether they are scaled."""
    env = gym.wrappers.TransformReward(toys.Toy(), lambda reward: reward + 100)
    env = gym.wrappers.NormalizeReward(gym.wrappers.NormalizeObservation(env))
    MADE.append(env)
    return gym.wrappers.TimeLimit(env, 9)


gym.register("Normalized-v0", source)


def of(env: gym.Env) -> statistics.Shared:
    return statistics.merged([Statistics(env).read()])


def assert_equal(one: statistics.Shared, other: statistics.Shared) -> None:
    assert one.keys() == other.keys()
    assert one
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        np.testing.assert_array_equal(one[name], other[name], name)


def test_statistics_of_several_environments_are_those_of_all_that_they_have_seen():
    generator = np.random.default_rng(0)
    data = [generator.normal(index, 1 + index, (50 * (index + 1), 3)) for index in range(3)]
    states = []
    for part in data:
        env = gym.wrappers.NormalizeObservation(toys.Toy())
        env.obs_rms.count = 0
        env.obs_rms.update(part)
        states.append(Statistics(env).read())
    merged, everything = statistics.merged(states), np.concatenate(data)
    np.testing.assert_allclose(merged[f"{OBSERVATIONS}.mean"], everything.mean(0), rtol=1e-6)
    np.testing.assert_allclose(merged[f"{OBSERVATIONS}.var"], everything.var(0), rtol=1e-6)
    assert merged[f"{OBSERVATIONS}.count"] == len(everything)


def test_evaluations_scale_observations_as_training_does_and_count_raw_rewards(small):
    MADE.clear()
    agent = implicitq.make("miq", source, **small).learn()
    training, *evaluations = MADE
    assert len(evaluations) == small["eval_episodes"]
    assert training.env.obs_rms.count > small["steps"]
    for env in evaluations:
        np.testing.assert_array_equal(env.env.obs_rms.mean, training.env.obs_rms.mean)
        np.testing.assert_array_equal(env.env.obs_rms.var, training.env.obs_rms.var)
        assert env.env.obs_rms.count == training.env.obs_rms.count
        assert not env.env.update_running_mean
    assert_equal(agent.statistics, of(training))

    seen = {}
    plain, scale = toys.Toy(), training.env.obs_rms

    def act(observations: np.ndarray) -> np.ndarray:
        seen.setdefault("first", observations.copy())
        return np.zeros((len(observations), 2))

    done = Evaluator(EnvironmentMaker(source), 1, seed=5).run(act, 7, agent.statistics)
    first, _ = plain.reset(seed=vector.episode_seed(5, vector.EVALUATION, 0, 7))
    np.testing.assert_array_equal(seen["first"][0], np.float32((first - scale.mean) / np.sqrt(scale.var + 1e-8)))
    assert done.returns == (102.0 * done.lengths[0],)  # every step is paid 0.5 + 2.5 - 1, and 100


def test_the_training_environment_goes_on_learning_its_statistics_after_an_evaluation(small):
    MADE.clear()
    agent = implicitq.make("miq", source(), **small).learn(40)
    training, before = MADE[0], MADE[0].env.obs_rms.count
    agent.learn(40)
    assert training.env.obs_rms.count > before + 40
    assert training.env.update_running_mean
    assert training.update_running_mean
    assert training.return_rms.var != 1


@pytest.mark.parametrize(("vectorization", "num_envs"), [("sync", 2), ("async", 1)])
def test_environments_come_back_with_their_statistics_bit_for_bit(vectorization, num_envs):
    def made() -> TrainingEnvironments:
        return TrainingEnvironments(EnvironmentMaker(source), num_envs, vectorization, 3)

    def play(envs: TrainingEnvironments, steps: int) -> list[Any]:
        generator, stream = np.random.default_rng(steps), []
        for _ in range(steps):
            step = envs.step(generator.uniform(-1, 1, (num_envs, 2)))
            stream += [step.observations, step.rewards]
            ended = step.terminated | step.truncated
            stream += [envs.next_episodes(ended)] if ended.any() else []
        return stream

    whole, again = made(), made()
    whole.start()
    play(whole, 40)
    again.restore(whole.arrays())
    assert_equal(whole.statistics, again.statistics)
    for one, other in zip(play(whole, 30), play(again, 30), strict=True):
        np.testing.assert_array_equal(one, other)
    assert_equal(whole.statistics, again.statistics)
    whole.close()
    again.close()


def test_a_resumed_run_ends_as_one_that_was_never_stopped(tmp_path: Path, small, files_of):
    settings = {**small, "num_envs": 2, "bins": 5}
    implicitq.make("miq", source, **settings).learn(out=tmp_path / "whole").close()
    agent = implicitq.make("miq", source, **settings)
    out = tmp_path / "stopped"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as that the environment did not come back
        agent.learn(callback=lambda event: event.step < 35, out=out).close()
        implicitq.resume(out, env=source).learn(callback=lambda event: event.step < 77).close()
        implicitq.resume(out, env=source).learn().close()
    assert files_of(out) == files_of(tmp_path / "whole")


def test_processes_of_their_own_change_nothing(tmp_path: Path, small):
    runs = {}
    for vectorization in ("sync", "async"):
        out = tmp_path / vectorization
        implicitq.make("miq", source, **small, num_envs=2, vectorization=vectorization).learn(out=out).close()
        runs[vectorization] = [read_arrays(out / name)[0] for name in ("policy.safetensors", "best.safetensors")]
        runs[vectorization] += [(out / "evaluations.csv").read_text()]
    np.testing.assert_equal(runs["async"], runs["sync"])


def test_policy_files_bring_their_statistics(tmp_path: Path, small, monkeypatch):
    agent = implicitq.make("miq", "Normalized-v0", **small).learn(out=tmp_path / "run")
    agent.save(tmp_path / "alone.safetensors")
    agent.close()
    expected, last = agent.statistics, agent.evaluate(3, seed=1)
    for path in (tmp_path / "run", tmp_path / "alone.safetensors"):
        loaded = implicitq.load(path)
        assert_equal(loaded.statistics, expected)
        assert loaded.evaluate(3, seed=1) == last
    loaded._loaded_statistics = {}
    with pytest.warns(UserWarning, match=f"no statistics of training for {OBSERVATIONS}: it begins anew"):
        assert loaded.evaluate(3, seed=1) != last  # so it does matter

    best = implicitq.load(tmp_path / "run", best=True)
    rows = (tmp_path / "run" / "evaluations.csv").read_text().splitlines()[1:]
    row = max(reversed(rows), key=lambda row: float(row.split(",")[1]))
    assert best.step == int(row.split(",")[0])
    assert repr(best.evaluate(small["eval_episodes"]).mean) == row.split(",")[1]


def test_the_commands_use_the_statistics_of_the_policy(tmp_path: Path, small, capsys):
    agent = implicitq.make("miq", "Normalized-v0", **small).learn(out=tmp_path / "run")
    agent.close()
    assert cli.run(["evaluate", str(tmp_path / "run"), "--episodes", "2", "--seed", "3", "--json"]) == 0
    assert tuple(json.loads(capsys.readouterr().out)["returns"]) == agent.evaluate(2, seed=3).returns


def test_films_use_the_statistics_of_the_policy(tmp_path: Path, small):
    pytest.importorskip("PIL")

    class Filmed(toys.Toy):
        render_mode = "rgb_array"

        def render(self) -> np.ndarray:
            return np.zeros((8, 8, 3), np.uint8)

    def filmed() -> gym.Env:
        MADE.append(gym.wrappers.NormalizeReward(gym.wrappers.NormalizeObservation(Filmed())))
        return MADE[-1]

    agent = implicitq.make("miq", filmed, **small).learn()
    record(agent, tmp_path / "film.gif")
    shown = of(MADE[-1])
    for part in ("mean", "var", "count"):
        np.testing.assert_array_equal(shown[f"{OBSERVATIONS}.{part}"], agent.statistics[f"{OBSERVATIONS}.{part}"])
    assert shown[f"{RETURNS}.var"] == 1


def test_your_own_environment_gets_the_statistics_for_predicting(small):
    agent = implicitq.make("miq", source, **small).learn()
    env = agent.prepare(source())
    observation, _ = env.reset(seed=0)
    mean, var = agent.statistics[f"{OBSERVATIONS}.mean"], agent.statistics[f"{OBSERVATIONS}.var"]
    raw = toys.Toy().reset(seed=0)[0]
    np.testing.assert_array_equal(observation, np.float32((raw - mean) / np.sqrt(var + 1e-8)))
    assert env.step(np.array([0.5, 2.5]))[1] == 102.0
    with pytest.warns(UserWarning, match=f"observations that {OBSERVATIONS} had scaled, but the environment has none"):
        agent.prepare(toys.Toy())


def test_training_can_begin_with_the_statistics_of_a_policy(tmp_path: Path, small):
    first = implicitq.make("miq", source, **small).learn()
    first.save(tmp_path / "policy")
    second = implicitq.make("miq", source, **small, num_envs=2).start_from(tmp_path / "policy")
    second.learn(2)
    seen, before = (agent.statistics[f"{OBSERVATIONS}.count"] for agent in (second, first))
    assert before + 3 < seen < before + 5  # two observations of each environment
    np.testing.assert_allclose(
        second.statistics[f"{OBSERVATIONS}.mean"], first.statistics[f"{OBSERVATIONS}.mean"], atol=0.2
    )
    with pytest.warns(UserWarning, match="but the environment has none: wrap it as in training"):
        implicitq.make("miq", toys.Toy, **small).start_from(tmp_path / "policy")


def test_an_environment_that_is_made_anew_keeps_the_statistics(tmp_path: Path):
    def breaking() -> gym.Env:
        return gym.wrappers.NormalizeObservation(toys.Fails("raise", "step", 30, tmp_path / "failed"))

    envs = TrainingEnvironments(EnvironmentMaker(breaking), 1, "sync", 0, on_error="restart")
    envs.start()
    while not (step := envs.step(np.zeros((1, 2)))).failed.any():
        if (step.terminated | step.truncated).any():
            envs.next_episodes(np.array([True]))
    count = envs.statistics[f"{OBSERVATIONS}.count"]
    with pytest.warns(UserWarning, match="it was made anew"):
        envs.restart(np.array([True]))
    assert count > 30
    assert envs.statistics[f"{OBSERVATIONS}.count"] == count + 1


class Scaled(gym.ObservationWrapper):
    """A wrapper of somebody else: without a switch, and with a sum of its own beside the statistics."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.scale = gym.wrappers.utils.RunningMeanStd(shape=(3,))
        self.steps, self.decay = 0, 1.0

    def observation(self, observation: np.ndarray) -> np.ndarray:
        self.steps += 1
        self.decay *= np.float32(0.99)  # which makes another type of it
        self.scale.update(observation[None])
        return (observation - self.scale.mean) * self.decay


def test_other_peoples_wrappers_are_brought_back_and_said_not_to_be_frozen():
    env = Scaled(toys.Toy())
    env.reset(seed=0)
    state = Statistics(env).read()
    assert state["Scaled.steps"] == 1
    other = Scaled(toys.Toy())
    Statistics(other).load(statistics.unpacked(statistics.packed(state)))
    assert type(other.decay) is type(env.decay) is np.float32
    assert type(other.scale.count) is float
    assert type(other.steps) is int
    np.testing.assert_equal(Statistics(other).read(), state)
    assert Statistics(other).misfits(of(env)) == [
        "Scaled.scale cannot be frozen, so it goes on from the statistics of training in every evaluation: its class "
        "has no update_running_mean"
    ]


def test_statistics_that_you_have_frozen_yourself_need_none_of_training():
    env = gym.wrappers.NormalizeObservation(toys.Toy())
    env.update_running_mean, env.obs_rms.mean = False, np.full(3, 5.0)
    assert Statistics(env).misfits({}) == []
    Statistics(env).adopt({})
    np.testing.assert_array_equal(env.obs_rms.mean, np.full(3, 5.0))


def test_two_wrappers_of_one_class_are_told_apart():
    env = gym.wrappers.NormalizeObservation(gym.wrappers.NormalizeObservation(toys.Toy()))
    assert statistics.keys(of(env)) == ["NormalizeObservation 2.obs_rms", OBSERVATIONS]


def test_statistics_that_an_eval_env_shares_with_training_are_not_touched():
    training = source()
    training.reset(seed=0)
    training.step(np.zeros(2))
    evaluation = source()
    evaluation.env.return_rms, evaluation.env.env.obs_rms = training.env.return_rms, training.env.env.obs_rms
    before = of(training)
    Statistics(evaluation).adopt(
        {
            f"{OBSERVATIONS}.{part}": np.float32(7) * before[f"{OBSERVATIONS}.{part}"]
            for part in ("mean", "var", "count")
        }
    )
    assert_equal(of(training), before)


def test_a_checkpoint_is_refused_by_an_environment_with_other_statistics(tmp_path: Path, small):
    class Bare(toys.Toy):
        observation_space = source().observation_space

    implicitq.make("miq", source, **small).learn(50, out=tmp_path / "run").close()
    sentence = f"trained with the statistics of {OBSERVATIONS}, {RETURNS}, but its environment has none"
    with pytest.raises(EnvironmentFailed, match=sentence):
        implicitq.resume(tmp_path / "run", env=Bare)


def test_a_checkpoint_of_an_earlier_version_is_said_to_have_no_statistics():
    envs = TrainingEnvironments(EnvironmentMaker(lambda: gym.wrappers.NormalizeReward(toys.Toy())), 1, "sync", 0)
    envs.start()
    arrays = {name: array for name, array in envs.arrays().items() if not name.startswith("statistics.")}
    with pytest.warns(UserWarning, match=f"kept no statistics of {RETURNS}: they begin anew"):
        envs.restore(arrays)


@pytest.mark.parametrize("name", ["number.NormalizeReward.gamma", "code.NormalizeReward.gamma"])
def test_checkpoints_with_statistics_that_cannot_be_are_refused(name):
    with pytest.raises(InputError, match=f"statistics '{name}' that nothing can be made of"):
        statistics.unpacked({name: np.zeros(3)})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"var": -np.ones(3)}, "a variance or a count below 0"),
        ({"count": np.array(-1.0)}, "a variance or a count below 0"),
        ({"var": np.ones(2)}, "do not fit together"),
        ({"count": np.ones(3)}, "do not fit together"),
        ({"mean": np.zeros(3, int)}, "do not fit together"),
        ({"mean": None}, "are not whole"),
        ({"median": np.zeros(3)}, "are not whole"),
        ({"\x1b[2J.mean": np.zeros(3)}, "are not whole"),
    ],
)
def test_policy_files_with_statistics_that_cannot_be_are_refused(tmp_path: Path, small, changes, sentence):
    agent = implicitq.make("miq", toys.Toy, **small)
    parts = {"mean": np.zeros(3), "var": np.ones(3), "count": np.array(2.0), **changes}
    shared = {f"{OBSERVATIONS}.{part}": array for part, array in parts.items() if array is not None}
    spaces = agent.observation_space, agent.action_space
    policy_file.save(tmp_path / "policy", agent.config, *spaces, agent._actor, 0, shared)
    with pytest.raises(InputError, match=f"cannot be used as a policy: its statistics .*{sentence}"):
        implicitq.load(tmp_path / "policy")


def test_statistics_of_another_shape_are_refused():
    env = gym.wrappers.NormalizeObservation(toys.Toy())
    shared = {
        f"{OBSERVATIONS}.mean": np.zeros(4),
        f"{OBSERVATIONS}.var": np.ones(4),
        f"{OBSERVATIONS}.count": np.ones(()),
    }
    with pytest.raises(InputError, match=r"obs_rms.mean of training has shape \(4,\), that of the environment \(3,\)"):
        Statistics(env).adopt(shared)


def test_environments_without_statistics_leave_nothing_in_files(tmp_path: Path, small):
    implicitq.make("miq", toys.Toy, **small).learn(40, out=tmp_path / "run").close()
    for path in (tmp_path / "run").rglob("*.safetensors"):
        assert not [name for name in read_arrays(path)[0] if "statistics" in name]
