"""Evaluations in lockstep; and values against the returns that followed: what is added up, over which rows."""

from __future__ import annotations

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicitq
import toys
from implicitq import algorithms, configs, evaluate, hindsight
from implicitq.commands.main import run
from implicitq.envs import spaces
from implicitq.envs.making import EnvironmentMaker
from implicitq.envs.vector import EVALUATION, episode_seed
from implicitq.evaluate import Evaluator
from implicitq.events import Measured
from implicitq.hindsight import compare, range_of_returns, soft_returns
from implicitq.learner import Learner
from implicitq.replay import Episode, Replay
from implicitq.runs.logs import first_implausible, read_metrics
from implicitq.types import Evaluation, InputError, Spec, Transition


def act(observations: np.ndarray) -> np.ndarray:
    return np.tanh(observations[:, :2])


def one_by_one(end_chance: float, index: int, seed: int, step: int) -> tuple[float, int]:
    env = toys.Toy(end_chance=end_chance)
    observation, _ = env.reset(seed=episode_seed(seed, EVALUATION, index, step))
    total, length, over = 0.0, 0, False
    while not over:
        action = spaces.to_environment(env.action_space)(act(observation.astype(np.float32)[None]))[0]
        observation, reward, terminated, truncated, _ = env.step(action)
        total, length, over = total + reward, length + 1, terminated or truncated
    return total, length


def test_episodes_in_lockstep_equal_episodes_one_by_one():
    evaluator = Evaluator(EnvironmentMaker(lambda: toys.Toy(end_chance=0.2)), 8, seed=3)
    expected = [one_by_one(0.2, index, 3, 1234) for index in range(8)]
    done = evaluator.run(act, 1234)
    assert done.lengths == tuple(length for _, length in expected)
    np.testing.assert_allclose(done.returns, [total for total, _ in expected], rtol=1e-12)
    assert len(set(done.lengths)) > 1, "the episodes should end at different times"


def test_the_batch_keeps_its_shape_and_finished_environments_are_never_stepped_again():
    shapes = []

    def watching(observations: np.ndarray) -> np.ndarray:
        shapes.append(observations.shape)
        return act(observations)

    steps = []

    class Counting(toys.Toy):  # raises when stepped after its end
        def step(self, action):
            steps.append(None)
            return super().step(action)

    done = Evaluator(EnvironmentMaker(lambda: Counting(end_chance=0.2)), 5, seed=0).run(watching, 10)
    assert set(shapes) == {(5, 3)}
    assert len(shapes) == max(done.lengths)
    assert len(steps) == sum(done.lengths)


def test_the_true_step_is_recorded_and_picks_the_episodes():
    evaluator = Evaluator(EnvironmentMaker(toys.Toy), 3, seed=0)
    first, second, again = evaluator.run(act, 100), evaluator.run(act, 203), evaluator.run(act, 100)
    assert (first.step, second.step) == (100, 203)
    assert first == again
    assert first.returns != second.returns


def test_mean_and_std_are_over_episodes():
    done = Evaluation((1.0, 3.0), (5, 6), 10)
    assert (done.mean, done.std) == (2.0, 1.0)


def test_returns_that_are_not_finite_are_refused():
    with pytest.raises(InputError, match=r"an evaluation episode at step 7 returned .* rewards must be finite"):
        Evaluator(EnvironmentMaker(lambda: toys.Breaks(2, "reward")), 1, seed=0).run(act, 7)


def test_an_environment_without_an_end_is_refused(monkeypatch):
    monkeypatch.setattr(evaluate, "LONGEST_EPISODE", 50)
    run = Evaluator(EnvironmentMaker(lambda: toys.Toy(end_chance=0.0, limit=50)), 2, seed=0).run(act, 7)
    assert run.lengths == (50, 50)
    with pytest.raises(InputError, match="an episode has not ended after 50 steps; give the environment a time limit"):
        Evaluator(EnvironmentMaker(lambda: toys.Toy(end_chance=0.0, limit=51)), 2, seed=0).run(act, 7)


def test_a_failing_environment_gives_a_sentence():
    with pytest.raises(InputError, match="the environment failed in step: ZeroDivisionError"):
        Evaluator(EnvironmentMaker(lambda: toys.Breaks(2, "error")), 1, seed=0).run(act, 7)


# Hindsight: values against the returns that followed.


GAMMA = 0.9


def defined(rewards, first, later, end, n_step) -> list[float]:
    """The definition, term by term."""
    length = len(rewards)

    def total(t: int) -> float:
        if t == length:
            return end
        steps = range(min(n_step, length - t))
        found = (
            first[t] + sum(GAMMA**i * rewards[t + i] for i in steps) + sum(GAMMA**i * later[t + i] for i in steps[1:])
        )
        return found + GAMMA ** len(steps) * total(t + len(steps))

    return [total(t) for t in range(length)]


@pytest.mark.parametrize(("length", "n_step"), [(1, 1), (7, 1), (7, 3), (2, 5), (9, 9)])
def test_returns_add_up_as_targets_of_n_steps_do(length, n_step):
    generator = np.random.default_rng(length)
    rewards, first, later = generator.normal(size=(3, length))
    found = soft_returns(rewards, first, later, 2.5, GAMMA, n_step)
    np.testing.assert_allclose(found, defined(rewards, first, later, 2.5, n_step))


def test_the_range_of_returns_by_hand():
    """One episode terminates; the other is cut, and taken to go on with the mean of its rewards."""
    nothing = np.zeros((3, 1))
    ended = Episode(nothing, nothing, np.array([1.0, -2.0]), True, None)
    cut = Episode(nothing, nothing, np.array([3.0, 1.0]), False, None)
    returns = [1 - 0.9 * 2, -2.0, 3 + 0.9 * (1 + 0.9 * 20), 1 + 0.9 * 20]
    spread = np.std(returns)
    assert range_of_returns([ended, cut], GAMMA) == pytest.approx((-2.0 - spread, returns[2] + spread))


def filled(ends: str, rows: int = 100) -> Replay:
    """A ring; . is a step after which the episode goes on, t terminates it, c cuts it, and | cuts it without a step."""
    replay = Replay(
        rows=rows,
        num_envs=1,
        observation_size=1,
        action_dimensions=1,
        action_dtype=np.dtype(np.uint8),
        generator=np.random.default_rng(0),
        discount=GAMMA,
    )
    time = itertools.count()
    everywhere, number = np.ones(1, bool), lambda: np.full((1, 1), next(time), np.float32)
    replay.begin(everywhere, number())
    for step, end in enumerate(ends):
        if end == "|":
            replay.end_open_episodes(everywhere)
        else:
            flags = np.array([end == "t"]), np.array([end == "c"])
            replay.add(np.full((1, 1), step), np.full(1, float(step)), *flags, number())
        if end != ".":
            replay.begin(everywhere, number())
    return replay


def told(episodes: list[Episode]) -> list[tuple[list[float], bool]]:
    return [(episode.rewards.tolist(), episode.terminated) for episode in episodes]


def test_whole_episodes_are_found_once_each_with_their_last_observation():
    replay = filled("..t.c..")
    found, following = replay.episodes(np.zeros(1, np.int64))
    assert told(found) == [([0, 1, 2], True), ([3, 4], False)]
    assert [episode.observations[:, 0].tolist() for episode in found] == [[0, 1, 2, 3], [4, 5, 6]]
    assert following.tolist() == [7]
    assert replay.episodes(following)[0] == []


def test_an_episode_that_was_cut_without_a_step_counts_up_to_there_and_an_empty_one_does_not():
    assert told(filled("..||t").episodes(np.zeros(1, np.int64))[0]) == [([0, 1], False), ([4], True)]


@pytest.mark.parametrize("since", [0, 4])
def test_an_episode_whose_beginning_has_left_the_ring_is_passed_over(since):
    replay = filled("..t....t.t.", rows=9)  # holds 8 rows: the second episode began before them
    found, following = replay.episodes(np.array([since]))
    assert told(found) == [([8, 9], True)]
    assert following.tolist() == [13]


def test_an_episode_that_fills_the_ring_is_waited_for_in_vain_and_the_next_one_is_found():
    replay = filled("..............", rows=5)
    found, following = replay.episodes(np.zeros(1, np.int64))
    assert (found, following.tolist()) == ([], [0])
    replay = filled("..............t.t", rows=5)
    assert told(replay.episodes(following)[0]) == [([15, 16], True)]


@pytest.mark.parametrize("stride", [1, 3])
def test_a_value_that_is_too_high_by_one_number_is_found_to_be(stride, monkeypatch):
    monkeypatch.setattr(hindsight, "_ROWS", 4)  # several calls, the last one filled up
    monkeypatch.setattr(hindsight, "_STRIDE", stride)
    episodes, _ = filled("...t......t.t").episodes(np.zeros(1, np.int64))
    true = {float(s): g for e in episodes for s, g in zip(e.observations[:, 0], after(e), strict=True)}

    def value(observations):
        assert len(observations) == 4
        return np.array([true[float(s)] + 5 for s in observations[:, 0]])

    found = compare(episodes, value, nothing_besides, GAMMA, 1)
    assert found["overestimation"] == pytest.approx(5)
    visited = [g for e in episodes for g in after(e)[:-1][::stride]]
    assert found["return_spread"] == pytest.approx(np.std(visited))


def nothing_besides(observations, actions):
    return np.zeros(len(observations)), np.zeros(len(observations))


def after(episode: Episode) -> list[float]:
    nothing = np.zeros(len(episode.rewards))
    return [*soft_returns(episode.rewards, nothing, nothing, 0.0, GAMMA), 0.0]


def test_where_a_time_limit_cut_the_value_of_the_last_observation_counts():
    (episode,), _ = filled("c").episodes(np.zeros(1, np.int64))
    half = lambda s, a: (np.full(len(s), 0.5), np.zeros(len(s)))  # noqa: E731
    found = compare([episode], lambda s: np.where(s[:, 0] == 1, 10.0, 4.0), half, GAMMA, 1)
    assert found["overestimation"] == pytest.approx(4.0 - (0.0 + 0.5 + GAMMA * 10.0))


def test_without_episodes_there_is_nothing_to_tell():
    assert all(np.isnan(value) for value in compare([], after, nothing_besides, GAMMA, 1).values())


BOX, CHOICE = Spec(3, 2, None), Spec(3, 1, (4,))


@pytest.mark.parametrize(
    ("algorithm", "spec", "values", "weight", "later"),
    [
        ("iq", BOX, {"temperature": 0.2}, 0.2, 0.0),
        ("miq", BOX, {"temperature": 0.2}, 0.02, 0.0),
        ("miq", BOX, {"temperature": 0.2, "n_step": 3, "n_step_target": "path"}, 0.02, "first"),
        ("miq-auto", BOX, {"initial_temperature": 0.2, "entropy_target": -1.5}, 0.2, 0.2 * -1.5 * 2),
        ("trust-pcl", CHOICE, {"temperature": 0.2}, 0.02, 0.0),
        ("sac", BOX, {"temperature": 0.2}, 0.2, 0.0),
        ("mdqn", CHOICE, {"temperature": 0.2, "munchausen_clip": None}, 0.02, 0.0),
        ("dqn", CHOICE, {}, 0.0, 0.0),
    ],
)
def test_every_algorithm_tells_what_its_value_counts_besides_rewards(algorithm, spec, values, weight, later):
    made = algorithms.build(configs.resolve(algorithm, "none", hidden=(4,), **values), spec)
    actor = made.actor(made.init(jax.random.key(0)))
    observation = jax.random.normal(jax.random.key(1), (6, 3))
    action, coordinates = made.sample(actor, observation, jax.random.key(2))
    found = made.regularization(actor, observation, action)
    first = -weight * made.log_prob(actor, observation, coordinates) if weight else jnp.zeros(6)
    np.testing.assert_allclose(found[0], first, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[1], first if later == "first" else np.full(6, later), rtol=1e-4, atol=1e-6)


def test_the_divergence_of_two_policies_is_that_of_their_probabilities():
    config = configs.resolve("mdqn", "none", hidden=(8,), temperature=1.0, learning_rate=0.05)
    learner = Learner(algorithms.build(config, CHOICE), CHOICE, config)
    observation = np.random.default_rng(0).normal(size=(4_000, 3)).astype(np.float32)
    actions = [np.full((4_000, 1), number, np.uint8) for number in range(4)]
    log_policy = lambda: np.stack([learner.newest.log_prob(observation, a) for a in actions], 1)  # noqa: E731
    before, snapshot = log_policy(), learner.newest.snapshot()
    assert learner.newest.divergence_from(snapshot, learner.key, observation, 0) == pytest.approx(0, abs=1e-7)
    rewards = np.ones(4_000, np.float32)
    for _ in range(3):
        learner.update(Transition(observation, actions[1], rewards, 0 * rewards, observation))
    exact = np.mean(np.sum(np.exp(before) * (before - log_policy()), axis=1))
    assert exact > 1e-3
    assert learner.newest.divergence_from(snapshot, learner.key, observation, 0) == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("algorithm", ["iq", "mdqn"])
def test_where_actions_are_forbidden_all_that_is_measured_is_finite(algorithm, small):
    rows = []
    values = {name: value for name, value in small.items() if name != "bins"}
    with implicitq.make(algorithm, "toys:MaskedToy-v0", **values) as agent:
        agent.learn(callback=lambda event: rows.append(event.values) if isinstance(event, Measured) else None)
    for name in ("kl", "overestimation", "return_spread", "td_error", "gradient_norm", "entropy_per_dimension"):
        assert np.isfinite(rows[-1][name]), name


def test_what_rewards_and_entropy_can_explain():
    assert hindsight.plausible_value(2.0, 0.0, 6, 0.99) == pytest.approx(200)
    assert hindsight.plausible_value(2.0, 0.1, 6, 0.9) == pytest.approx((2 + 3 * 0.1 * 6) / 0.1)
    assert hindsight.is_implausible(np.array([-700.0, 600, np.nan]), 200.0).tolist() == [True, False, False]
    assert not hindsight.is_implausible(5.0, 0.0)  # an untrained network where there is no reward yet


@pytest.mark.parametrize("settings", [{"temperature": 5}, {"temperature": 5.0}, {"kl": 0.0, "entropy": 5.0}])
def test_any_way_to_give_a_temperature_explains_the_same_values(settings):
    assert configs.resolve("iq", "Task-v0", **settings).fixed_temperature == 5


def test_a_run_whose_values_leave_every_range_warns_once_and_its_folder_tells(small, tmp_path):
    settings = {**small, "learning_rate": 30.0, "discount": 0.9, "log_every": 10}
    agent = implicitq.make("iq", toys.Toy, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agent.learn(out=tmp_path / "run")
    agent.close()
    told = [str(one.message) for one in caught if "rewards so far explain at most" in str(one.message)]
    assert len(told) == 1
    assert "try a lower learning_rate" in told[0]
    table = read_metrics(tmp_path / "run")
    assert np.isfinite(table["value"][-1])
    assert "values diverged: " in (first_implausible(tmp_path / "run") or "")


def test_the_bound_goes_on_where_a_run_goes_on(small, tmp_path):
    whole = implicitq.make("iq", toys.Toy, **small).learn(out=tmp_path / "whole")
    stopped = implicitq.make("iq", toys.Toy, **small)
    stopped.learn(out=tmp_path / "stopped", listeners=[lambda event: event.step < 70])
    stopped.close()
    implicitq.resume(tmp_path / "stopped", toys.Toy).learn().close()
    whole.close()
    columns = [read_metrics(tmp_path / name)["plausible_value"] for name in ("whole", "stopped")]
    np.testing.assert_array_equal(*columns)
    assert columns[0][-1] > 0
    assert first_implausible(tmp_path / "whole") is None


@pytest.mark.filterwarnings("always:the mean value is")
def test_the_command_says_it_at_the_end(small_flags, tmp_path, capsys):
    flags = [*small_flags, "--learning-rate", "30", "--discount", "0.9"]
    assert run(["train", "iq", "--env", "toys:Toy-v0", *flags, "--out", str(tmp_path / "run")]) == 0
    output, errors = capsys.readouterr()
    assert "values diverged: " in " ".join(output.split())
    assert "explain at most" in " ".join(errors.split())
