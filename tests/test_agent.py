"""The agent: make, learn, predict, evaluate, save, load; and several seeds in step."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import implicitq
import toys
from implicitq import InputError, seeds
from implicitq.commands import main as cli
from implicitq.commands import train
from implicitq.events import CheckpointDue, Evaluated, Event, Measured, Started, Stopped, Ticked
from implicitq.policies.base import bin_centres
from implicitq.runs import layout
from implicitq.runs.layout import checkpoint_steps, read_evaluations
from implicitq.runs.logs import read_metrics
from toys import PixelProbe


@pytest.fixture(scope="module")
def box_agent():
    return implicitq.make("miq", toys.Toy, hidden=(8,), bins=5, seed=1)


def observations(count: int, size: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, size))


def box_actions(bins: int) -> np.ndarray:
    """Every combination of bin centres, in the environment's own bounds."""
    pairs = np.array(list(itertools.product(bin_centres(bins), repeat=2)), np.float64)
    low, high = toys.Toy.action_space.low, toys.Toy.action_space.high  # pyright: ignore
    return low + (pairs + 1) / 2 * (high - low)


@pytest.mark.parametrize("softmax", ["plain", "scaled"])
@pytest.mark.parametrize(
    ("algorithm", "env", "actions"),
    [
        ("iq", toys.Toy, box_actions(5)),
        ("miq", toys.Toy, box_actions(5)),
        ("miq", toys.DiscreteToy, np.arange(5, 8)),
        ("miq", toys.MultiDiscreteToy, np.array(list(itertools.product(range(2), range(4))))),
    ],
)
def test_q_and_v_are_softmax_consistent_in_every_state(algorithm, env, actions, softmax):
    agent = implicitq.make(algorithm, env, hidden=(8,), bins=5, softmax=softmax, seed=3)
    temperature = agent.config.temperature  # pyright: ignore
    for state in observations(4):
        states = np.repeat(state[None], len(actions), axis=0)
        q, log_pi = agent.q_value(states, actions), agent.log_prob(states, actions)
        advantages = (q.astype(np.float64) - agent.value(state)) / temperature
        assert np.exp(advantages).sum() == pytest.approx(1, abs=1e-3)
        assert np.exp(log_pi).sum() == pytest.approx(1, abs=1e-5)
        assert len(set(np.round(log_pi, 4))) > len(actions) // 2, "the policy should not be uniform"


def test_sampled_actions_follow_log_prob():
    agent = implicitq.make("miq", toys.DiscreteToy, hidden=(8,), seed=3)
    state = observations(1)[0]
    actions, _ = agent.predict(np.repeat(state[None], 4096, axis=0))
    shares = np.array([(actions == a).mean() for a in (5, 6, 7)])
    expected = np.exp([agent.log_prob(state, a) for a in (5, 6, 7)])
    np.testing.assert_allclose(shares, expected, atol=0.04)


def test_the_deterministic_action_is_the_expected_bin_or_the_mode():
    box = implicitq.make("miq", toys.Toy, hidden=(8,), bins=5, seed=1)
    state, actions = observations(1)[0], box_actions(5)
    pi = np.exp(box.log_prob(np.repeat(state[None], len(actions), axis=0), actions).astype(np.float64))
    np.testing.assert_allclose(box.predict(state, deterministic=True)[0], pi @ actions, rtol=1e-4)
    discrete = implicitq.make("miq", toys.DiscreteToy, hidden=(8,), seed=3)
    best = max((5, 6, 7), key=lambda a: discrete.log_prob(state, a))
    assert discrete.predict(state, deterministic=True)[0] == best


def test_predict_takes_one_observation_or_a_batch(box_agent):
    batch = observations(5)
    actions, state = box_agent.predict(batch, deterministic=True)
    assert (actions.shape, actions.dtype, state) == ((5, 2), np.float64, None)
    for row, expected in zip(batch, actions, strict=True):
        action, _ = box_agent.predict(row, deterministic=True)
        assert action.shape == (2,)
        np.testing.assert_allclose(action, expected, rtol=1e-5)
        assert box_agent.action_space.contains(action)


def test_predict_passes_the_state_through_as_stable_baselines3_expects(box_agent):
    _, state = box_agent.predict(observations(2), state=("kept",), episode_start=np.ones(2, bool), deterministic=True)
    assert state == ("kept",)


def test_sampled_predictions_differ_from_call_to_call(box_agent):
    state = observations(1)[0]
    assert len({tuple(box_agent.predict(state)[0]) for _ in range(20)}) > 1


@pytest.mark.parametrize(("env", "dtype"), [(toys.DiscreteToy, np.int64), (toys.MultiDiscreteToy, np.int64)])
def test_discrete_predictions_are_actions_of_the_space(env, dtype):
    agent = implicitq.make("iq", env, hidden=(8,))
    actions, _ = agent.predict(observations(6))
    assert actions.dtype == dtype
    assert actions.shape == (6, *env.action_space.shape)
    assert all(env.action_space.contains(action) for action in actions)
    assert env.action_space.contains(agent.predict(observations(1)[0], deterministic=True)[0])


@pytest.mark.parametrize("count", [1, 3, 4])
def test_answers_are_float32_with_the_leading_shape_of_the_input(box_agent, count):
    states, actions = observations(count), np.ones((count, 2))
    for answer, single in (
        (box_agent.value(states), box_agent.value(states[0])),
        (box_agent.log_prob(states, actions), box_agent.log_prob(states[0], actions[0])),
        (box_agent.q_value(states, actions), box_agent.q_value(states[0], actions[0])),
    ):
        assert (answer.shape, answer.dtype) == ((count,), np.float32)
        assert (single.shape, single.dtype) == ((), np.float32)
        np.testing.assert_allclose(answer[0], single, rtol=1e-5)


def test_a_box_action_has_the_probability_of_its_nearest_bin(box_agent):
    state, centre = observations(1)[0], box_actions(5)[7]
    near = centre + np.array([0.25, -0.4])  # bins are 0.6 and 1.0 wide
    assert box_agent.log_prob(state, near) == box_agent.log_prob(state, centre)
    assert box_agent.log_prob(state, centre + np.array([0.35, 0])) != box_agent.log_prob(state, centre)


def test_observations_and_actions_of_the_wrong_shape_are_refused(box_agent):
    with pytest.raises(InputError, match="expected one observation of Box"):
        box_agent.predict(np.zeros(4))
    with pytest.raises(InputError, match=r"expected 2 action\(s\)"):
        box_agent.q_value(np.zeros((2, 3)), np.zeros(2))


def test_learning_counts_steps_and_changes_the_policy(small):
    agent = implicitq.make("miq", toys.Toy(), **small)
    before = agent.value(observations(3))
    assert agent.learn(25) is agent
    assert agent.step == 25
    agent.learn(15)
    assert agent.step == 40
    assert not np.array_equal(agent.value(observations(3)), before)
    agent.learn(0)
    assert agent.step == 40
    agent.close()


def test_learning_without_a_number_goes_to_the_planned_end(small):
    agent = implicitq.make("miq", toys.Toy, **{**small, "steps": 30})
    assert agent.learn().step == 30
    assert agent.learn().step == 30


@pytest.mark.parametrize("seeds", [None, [0, 1]])
def test_the_number_given_to_learn_is_the_plan_of_the_run_folder_unless_make_had_one(small, tmp_path, seeds):
    unplanned = {name: value for name, value in small.items() if name not in ("steps", "seed")}
    first = "" if seeds is None else "seed-0"

    def planned(name):
        return layout.read_config(tmp_path / name / first).steps

    for name, given, plan in (("none", {}, 20), ("more", {"steps": 60}, 60), ("less", {"steps": 10}, 20)):
        with implicitq.make("miq", toys.Toy, seeds=seeds, **given, **unplanned) as agent:
            agent.learn(20, out=tmp_path / name)
            assert planned(name) == plan
            agent.learn(20)
            assert planned(name) == max(plan, 40)


def test_learn_may_name_its_run_folder_again(small, tmp_path):
    with implicitq.make("miq", toys.Toy, **small) as agent:
        for _ in range(3):
            agent.learn(20, out=tmp_path / "run")
        assert agent.step == 60
        with pytest.raises(InputError, match="this agent already writes to"):
            agent.learn(20, out=tmp_path / "other")
    with implicitq.make("miq", toys.Toy, seeds=[0, 1], **{**small, "steps": 40}) as group:
        group.learn(20, out=tmp_path / "seeds").learn(20, out=tmp_path / "seeds")
        assert group.step == 40
    with pytest.raises(InputError, match=r"holds several seeds; go on with implicitq\.seeds\.resume\("):
        implicitq.resume(tmp_path / "seeds", toys.Toy)


@pytest.mark.parametrize("steps", [1e10, True])
def test_a_number_of_steps_that_cannot_be_is_refused_before_a_folder_is_made(small, tmp_path, steps):
    unplanned = {name: value for name, value in small.items() if name != "steps"}
    with implicitq.make("miq", toys.Toy, **unplanned) as agent:
        with pytest.raises(
            InputError, match=r"at most 2,000,000,000 steps, got|a whole number of at least 0, got True"
        ):
            agent.learn(steps, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()
        agent.learn(0, out=tmp_path / "run")
        assert agent.learn(np.int64(30)).step == 30
        assert len(agent.evaluate(np.int64(2), seed=np.uint8(3)).returns) == 2


def test_the_temperature_is_that_of_the_config_or_what_was_learnt(small, tmp_path):
    observation, action = observations(3), np.zeros((3, 2), np.float32)
    for algorithm, more in (
        ("miq", {}),
        ("iq", {"temperature": None, "alpha": None, "kl": 0.2, "entropy": 0.1}),
        ("iq", {"temperature": "auto"}),
    ):
        with implicitq.make(algorithm, toys.Toy, **{**small, **more}) as agent:
            agent.learn(40).save(tmp_path / "one.policy")
            loaded = implicitq.load(tmp_path / "one.policy", toys.Toy)
            assert loaded.temperature == agent.temperature > 0
            implied = agent.temperature * agent.log_prob(observation, action) + agent.value(observation)
            np.testing.assert_allclose(agent.q_value(observation, action), implied, rtol=1e-5)


def test_an_observation_that_is_not_finite_is_refused_and_an_empty_batch_is_not(box_agent):
    with pytest.raises(InputError, match="the observation has nan in it, where numbers must be finite"):
        box_agent.predict(np.full(3, np.nan))
    assert box_agent.predict(np.zeros((0, 3)))[0].shape == (0, 2)


def test_a_run_that_dies_on_its_way_goes_on_to_the_number_given_to_learn(small, tmp_path):
    unplanned = {name: value for name, value in small.items() if name != "steps"}
    with implicitq.make("miq", toys.Toy, **unplanned) as agent:
        agent.learn(40, out=tmp_path / "run", callback=lambda event: event.step < 20)
        assert agent.step == 20
    with implicitq.resume(tmp_path / "run", toys.Toy) as agent:
        assert agent.learn().step == 40


def test_the_same_seed_gives_the_same_agent_and_another_seed_another(small):
    values = []
    for seed in (4, 4, 5):
        agent = implicitq.make("iq", toys.Toy, **{**small, "seed": seed}).learn(40)
        values.append(agent.value(observations(3)).tolist())
    assert values[0] == values[1]
    assert values[0] != values[2]


@pytest.mark.parametrize("steps", [-1, 2.5, "many"])
def test_a_bad_number_of_steps_is_refused(box_agent, steps):
    with pytest.raises(InputError, match="steps must be a whole number of at least 0, got"):
        box_agent.learn(steps)


@pytest.mark.parametrize(
    ("env", "normalize"),
    [(toys.Toy, False), (toys.DiscreteToy, False), (toys.MultiDiscreteToy, False), (toys.DictToy, True)],
)
def test_a_saved_policy_gives_the_same_answers(env, normalize, small, tmp_path):
    agent = implicitq.make("miq", env, **small, normalize_observations=normalize)
    agent.learn(40)
    agent.save(tmp_path / "toy.policy")
    loaded = implicitq.load(tmp_path / "toy.policy")
    assert (loaded.step, loaded.config) == (40, agent.config)
    assert loaded.observation_space == agent.observation_space
    assert loaded.action_space == agent.action_space
    env_now = env()
    state, _ = env_now.reset(seed=0)
    for _ in range(3):
        action, _ = agent.predict(state, deterministic=True)
        np.testing.assert_array_equal(loaded.predict(state, deterministic=True)[0], action)
        assert loaded.value(state) == agent.value(state)
        assert loaded.q_value(state, action) == agent.q_value(state, action)
        state, *_ = env_now.step(action)


def test_a_loaded_policy_can_be_evaluated_but_not_trained(small, tmp_path):
    agent = implicitq.make("miq", "toys:Toy-v0", **small).learn(25)
    agent.save(tmp_path / "toy.policy")
    loaded = implicitq.load(str(tmp_path / "toy.policy"), trust_env=True)
    assert loaded.evaluate(3) == agent.evaluate(3)
    assert loaded.evaluate(3).step == 25
    assert loaded.evaluate(3, seed=9) != loaded.evaluate(3)
    with pytest.raises(InputError, match=r"came from a policy file.*use implicitq.resume\(run_folder\)"):
        loaded.learn(10)


def test_a_policy_is_refused_for_another_environment(box_agent, tmp_path):
    box_agent.save(tmp_path / "toy.policy")
    assert implicitq.load(tmp_path / "toy.policy", env=toys.Toy()).evaluate(2).lengths
    with pytest.raises(InputError, match=r"the policy is for actions in Box.*, the environment has Discrete"):
        implicitq.load(tmp_path / "toy.policy", env=toys.DiscreteToy)
    with pytest.raises(InputError, match=r"the policy is for observations in Box.*, the environment has"):
        implicitq.load(tmp_path / "toy.policy", env="Pendulum-v1")


def test_the_policy_of_an_environment_object_asks_for_the_object(box_agent, tmp_path):
    box_agent.save(tmp_path / "toy.policy")
    with pytest.raises(InputError, match=r"trained on an environment object; give it as load\(path, env=...\)"):
        implicitq.load(tmp_path / "toy.policy").evaluate()


def test_files_that_are_no_policy_are_refused(box_agent, tmp_path):
    with pytest.raises(InputError, match="there is no policy file"):
        implicitq.load(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"has no policy.safetensors: it is no run folder"):
        implicitq.load(tmp_path)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InputError, match="is not a file of implicitq, or is damaged"):
        implicitq.load(tmp_path / "text")
    box_agent.save(tmp_path / "toy.policy")
    (tmp_path / "cut").write_bytes((tmp_path / "toy.policy").read_bytes()[:-10])
    with pytest.raises(InputError, match="is not a file of implicitq, or is damaged"):
        implicitq.load(tmp_path / "cut")


def test_evaluation_leaves_the_training_as_it_is(small):
    disturbed, calm = (implicitq.make("miq", toys.Toy(), **small) for _ in range(2))
    for agent in (disturbed, calm):
        agent.learn(30)
        if agent is disturbed:
            done = agent.evaluate(4)
            assert (len(done.returns), len(done.lengths), done.step) == (4, 4, 30)
            agent.predict(observations(3))
        agent.learn(20)
    np.testing.assert_array_equal(disturbed.value(observations(3)), calm.value(observations(3)))


@pytest.mark.parametrize(("arguments", "message"), [((0,), "episodes must be"), ((2.5,), "episodes must be")])
def test_a_bad_number_of_episodes_is_refused(box_agent, arguments, message):
    with pytest.raises(InputError, match=message):
        box_agent.evaluate(*arguments)


def test_a_bad_evaluation_seed_is_refused(box_agent):
    with pytest.raises(InputError, match="seed must be a whole number from 0 to 4294967295, got -1"):
        box_agent.evaluate(1, seed=-1)


def test_evaluation_can_have_an_environment_of_its_own(small):
    agent = implicitq.make("miq", toys.Toy, eval_env=lambda: toys.Toy(end_chance=0, limit=4), **small)
    assert agent.evaluate(3).lengths == (4, 4, 4)


def test_one_environment_is_never_in_use_twice(small):
    """Or an evaluation would reset the episode that is trained on."""
    env = toys.Toy()
    with implicitq.make("miq", env, eval_env=env, **small) as agent:
        agent.learn(80)  # evaluations on the way
        assert env.resets == agent.trainer.episodes + 1
    in_use = "returned an environment that is in use already, perhaps in another wrapper; it must make a new one"
    with pytest.raises(InputError, match=in_use):
        implicitq.make("miq", lambda: env, **small)
    for wrapped in (lambda another: another, gym.wrappers.NormalizeReward):
        with (
            implicitq.make("miq", lambda wrapped=wrapped, another=toys.Toy(): wrapped(another), **small) as agent,  # noqa: B008
            pytest.raises(InputError, match=in_use),
        ):
            agent.learn(80)
        assert agent.step == 0, "before any work is lost"


@pytest.mark.parametrize("made", [False, True], ids=["an object", "a function"])
def test_an_eval_env_inside_the_wrapper_of_training_is_copied(small, made):
    env = toys.Toy()
    source = gym.wrappers.NormalizeReward(env)
    with implicitq.make("miq", (lambda: source) if made else source, eval_env=env, **small) as agent:
        agent.learn(80)
        assert env.resets == agent.trainer.episodes + 1
    with pytest.raises(InputError, match="in use already"):
        implicitq.make("miq", env, eval_env=lambda: env, **small)


def test_an_eval_env_with_other_spaces_is_refused_at_once(small):
    with pytest.raises(InputError, match=r"training has actions in Box\(.*, eval_env has Discrete\(3"):
        implicitq.make("miq", toys.Toy, eval_env=toys.DiscreteToy, **small)


def test_a_callback_with_two_arguments_gets_the_agent_first(small):
    heard = []
    with implicitq.make("miq", toys.Toy, **small) as agent:
        agent.learn(40, callback=lambda who, event: heard.append((who, event)))
    assert {who for who, _ in heard} == {agent}
    assert isinstance(heard[-1][1], Stopped)


def test_a_callback_without_its_settings_is_refused(small):
    with (
        implicitq.make("miq", toys.Toy, **small) as agent,
        pytest.raises(InputError, match="the listener stop_at failed at step 0: it returned a function; call it with"),
    ):
        agent.learn(40, callback=implicitq.callbacks.stop_at)


def test_a_closed_agent_does_not_learn_on(small):
    with implicitq.make("miq", toys.Toy, **small) as agent:
        agent.learn(40)
    with pytest.raises(InputError, match="the agent was closed, and its environments with it; make a new one"):
        agent.learn(40)


def test_a_run_folder_is_free_once_nobody_has_its_agent(small, tmp_path):
    agent = implicitq.make("miq", "toys:Toy-v0", **small).learn(40, out=tmp_path / "run")
    with pytest.raises(InputError, match=r"this process already has .* open"):
        implicitq.resume(tmp_path / "run", "toys:Toy-v0")
    del agent
    with implicitq.resume(tmp_path / "run", "toys:Toy-v0") as agent:
        assert agent.step == 40


def test_a_run_cannot_begin_to_learn_its_temperature_on_the_way(small, tmp_path):
    implicitq.make("miq", "toys:Toy-v0", **small).learn(40, out=tmp_path / "run").close()
    with pytest.raises(InputError, match=r"temperature cannot change in a run that goes on \(it is 0.1\)"):
        implicitq.resume(tmp_path / "run", "toys:Toy-v0", temperature="auto")


def test_evaluations_on_other_spaces_are_refused_every_time(small):
    first = [toys.Toy]
    with implicitq.make("miq", lambda: (first.pop() if first else toys.DiscreteToy)(), **small) as agent:
        for _ in range(2):
            with pytest.raises(InputError, match="the environment for evaluations has Discrete"):
                agent.learn(40)


def test_learning_does_not_go_on_after_a_step_that_failed_halfway(small):
    breaking = iter([toys.Toy(), toys.Breaks(15, "error")])
    agent = implicitq.make("miq", lambda: next(breaking), eval_env=toys.Toy, num_envs=2, **small)
    for sentence in ("environment 1 failed in step", "the training has failed within a step"):
        with pytest.raises(InputError, match=sentence):
            agent.learn()


def test_actions_beyond_the_bounds_count_as_the_bounds(small):
    with implicitq.make("iq-gaussian", toys.Toy, **{k: v for k, v in small.items() if k != "bins"}) as agent:
        inside, beyond = (agent.log_prob(np.zeros(3), np.array(action)) for action in ([2.0, 5.0], [99.0, 5.1]))
        assert inside == beyond


@pytest.mark.parametrize("answer", [False, np.False_])
def test_a_callback_stops_by_any_kind_of_false(answer, small):
    with implicitq.make("miq", toys.Toy, **small) as agent:
        assert agent.learn(callback=lambda event: answer).step == 1


def test_wrapped_environments_train(small):
    wrapped = gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: 2 * reward)
    agent = implicitq.make("miq", wrapped, **small).learn(30)
    assert agent.config.env == "object:CartPole-v1"
    done = agent.evaluate(2)
    assert done.returns == tuple(2.0 * length for length in done.lengths)


def test_many_environments_make_as_many_updates_per_step(small, tmp_path):
    agent = implicitq.make("miq", toys.Toy, **{**small, "num_envs": 3, "steps": 60, "log_every": 3})
    agent.learn(out=tmp_path / "run")
    rows = [line.split(",") for line in (tmp_path / "run" / "metrics.csv").read_text().splitlines()]
    updates = {int(row[0]): int(row[rows[0].index("updates")]) for row in rows[1:]}
    assert agent.step == 60
    # min_replay is 20, so the first round of updates comes at step 21.
    assert updates == {step: max(0, step - 18) for step in range(3, 61, 3)}
    agent.close()


@pytest.mark.parametrize("how", ["reward", "observation"])
def test_values_that_are_not_finite_are_named_with_their_step(how, small):
    agent = implicitq.make("miq", lambda: toys.Breaks(33, how), eval_env=toys.Toy, **small)
    what = "a reward of inf at step 33" if how == "reward" else "an observation with nan in feature 1 at step 33"
    with pytest.raises(InputError, match=f"the environment gave {what}"):
        agent.learn()


def test_a_folder_must_be_given_with_the_first_call_of_learn(small, tmp_path):
    agent = implicitq.make("miq", toys.Toy, **small).learn(5)
    with pytest.raises(InputError, match="out must be given with the first call of learn"):
        agent.learn(5, out=tmp_path / "run")
    other = implicitq.make("miq", toys.Toy, **small).learn(5, out=tmp_path / "run")
    with pytest.raises(InputError, match="this agent already writes to"):
        other.learn(5, out=tmp_path / "other")
    assert other.directory == tmp_path / "run"
    other.close()


def test_public_names_are_the_documented_ones():
    known = {"Agent", "Evaluation", "InputError", "__version__", "callbacks", "load", "make", "resume"}
    assert set(implicitq.__all__) == known
    assert all(getattr(implicitq, name) is not None for name in implicitq.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        implicitq.nothing  # noqa: B018  # pyright: ignore


@pytest.fixture
def vec_env():
    """Of Stable-Baselines3. Optional: pip install 'implicitq[peers]'."""
    return pytest.importorskip("stable_baselines3.common.vec_env")


@pytest.mark.parametrize("task", ["Pendulum-v1", "CartPole-v1"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluate_policy_of_stable_baselines3_takes_the_agent_unchanged(task, deterministic, vec_env):
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    agent = implicitq.make("miq", task, hidden=(16,))
    env = vec_env.DummyVecEnv([lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(task)) for _ in range(3)])
    returns, lengths = evaluation.evaluate_policy(
        agent, env, n_eval_episodes=6, deterministic=deterministic, return_episode_rewards=True, warn=False
    )
    assert len(returns) == len(lengths) == 6
    assert np.isfinite(returns).all()


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_evaluation_of_sb3_contrib_passes_its_masks_to_the_agent(deterministic, small, vec_env):
    maskable = pytest.importorskip("sb3_contrib.common.maskable.evaluation")
    agent = implicitq.make("miq", toys.MethodToy, **small)
    env = vec_env.DummyVecEnv([lambda: gym.wrappers.RecordEpisodeStatistics(toys.MethodToy()) for _ in range(3)])
    returns, _ = maskable.evaluate_policy(  # the environment refuses what its mask forbids
        agent, env, n_eval_episodes=6, deterministic=deterministic, return_episode_rewards=True, warn=False
    )
    assert len(returns) == 6
    agent.close()


# Several seeds in step: each as it would be alone, in a folder of its own, and stopped and resumed with the others.


TOY, SEEDS = "toys:Toy-v0", (3, 0)


def arrays(agent: implicitq.Agent) -> dict[str, np.ndarray]:
    return agent.trainer.learner.arrays()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Two seeds that nothing has stopped."""
    folder = tmp_path_factory.mktemp("seeds") / "whole"
    with implicitq.make("iq", TOY, seeds=SEEDS, **toys.SMALL) as group:
        assert group.learn(out=folder).step == 120
    return folder


@pytest.mark.parametrize(
    ("algorithm", "env", "more"),
    [
        ("iq", TOY, {"num_envs": 2, "normalize_observations": True}),
        ("iq-auto", TOY, {"warmup": "uniform", "updates_per_step": 2}),
        ("sac", TOY, {}),
        ("dqn", "toys:MaskedToy-v0", {}),
    ],
    ids=str,
)
def test_every_seed_learns_what_it_would_learn_alone(algorithm, env, more, small):
    small |= {"steps": 300, "min_replay": 100, "eval_every": 300, "log_every": 100, **more}
    for name in ("bins",) if algorithm in ("sac", "dqn") else ():
        del small[name]
    group = implicitq.make(algorithm, env, seeds=SEEDS, **small)
    group.learn(100)
    alone = [implicitq.make(algorithm, env, seed=seed, **small) for seed in SEEDS]
    for one, other in zip(group.agents, alone, strict=True):
        other.learn(100)
        for name, column in vars(one.trainer.replay).items():  # nothing was learnt yet: the very same steps
            if isinstance(column, np.ndarray):
                np.testing.assert_array_equal(column, vars(other.trainer.replay)[name], name)
    first, second = arrays(group.agents[0]), arrays(group.agents[1])
    assert any(not np.array_equal(first[name], second[name]) for name in first)
    group.learn(8)
    for one, other in zip(group.agents, alone, strict=True):
        other.learn(8)
        mine, theirs = arrays(one), arrays(other)
        for name in theirs:
            np.testing.assert_allclose(mine[name], theirs[name], rtol=2e-3, atol=2e-4, err_msg=name)
        assert one.trainer.episodes == other.trainer.episodes
        other.close()
    group.close()


def test_images_learn_in_step_too(small):
    with implicitq.make("miq", PixelProbe, seeds=[1, 2], **small | {"steps": 30}) as group:
        group.learn()
        assert group.step == 30
        assert all(np.isfinite(value).all() for agent in group.agents for value in arrays(agent).values())


def test_every_seed_has_a_run_folder_that_all_commands_take(whole, capsys):
    for seed in SEEDS:
        folder = whole / f"seed-{seed}"
        assert json.loads((folder / "config.json").read_text())["seed"] == seed
        assert json.loads((folder / "versions.json").read_text())["seeds_together"] == list(SEEDS)
        assert [done.step for done in read_evaluations(folder)] == [40, 80, 120]
        assert implicitq.load(folder).step == 120
    first, second = (read_metrics(whole / f"seed-{seed}")["loss"] for seed in SEEDS)
    assert not np.array_equal(first, second, equal_nan=True)
    assert cli.run(["plot", str(whole), "--out", str(whole / "plot.png")]) == 0
    assert cli.run(["resume", str(whole), "--trust-env"]) == 2
    assert "is finished at step 120" in " ".join(capsys.readouterr().err.split())
    (whole / "plot.png").unlink()


def stopped_at(step: int):
    return lambda agent, event: event.step < step


@pytest.mark.parametrize("stop", [40, 55])
def test_stopped_and_resumed_together_all_end_as_if_never_stopped(stop, whole, tmp_path, small, files_of):
    part = tmp_path / "part"
    with implicitq.make("iq", TOY, seeds=SEEDS, **small) as group:
        assert group.learn(out=part, callback=stopped_at(stop)).step == stop
    with seeds.resume(part, trust_env=True) as group:
        assert group.seeds == SEEDS, "in the order in which they were stacked"
        assert group.learn().step == 120
    for seed in SEEDS:
        assert files_of(part / f"seed-{seed}") == files_of(whole / f"seed-{seed}")


def test_after_a_sudden_death_between_two_checkpoints_all_go_on_from_the_last_common_one(
    whole, tmp_path, small, files_of
):
    part = tmp_path / "part"
    with implicitq.make("iq", TOY, seeds=SEEDS, **small) as group:
        group.learn(out=part, callback=stopped_at(80))
    last = part / f"seed-{SEEDS[1]}" / "checkpoints"
    for path in last.glob("*80.*"):
        path.unlink()
    assert [checkpoint_steps(part / f"seed-{seed}") for seed in SEEDS] == [[40, 80], [40]]
    with seeds.resume(part, trust_env=True) as group:
        assert group.step == 40
        group.learn()
    for seed in SEEDS:
        assert files_of(part / f"seed-{seed}") == files_of(whole / f"seed-{seed}")


def test_other_settings_are_noted_for_all_seeds_or_for_none(whole, tmp_path, files_of, capsys):
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    before = files_of(copy / "seed-3")
    damaged = copy / "seed-0" / "config.json"
    told = damaged.read_text()
    damaged.write_text(told.replace('"discount": 0.99', '"discount": 0.98'))
    with pytest.raises(InputError, match=r"config\.json"):
        seeds.resume(copy, trust_env=True, learning_rate=1e-2)
    assert files_of(copy / "seed-3") == before
    damaged.write_text(told)
    with implicitq.resume(copy / "seed-3", trust_env=True, inexact=True, learning_rate=1e-2):
        pass  # as a start that was cut short between two seeds
    flags = ("--trust-env", "--learning-rate", "1e-2", "--steps", "160")
    assert cli.run(["resume", str(copy), *flags]) == 0
    assert "with other settings from here on: learning_rate 0.01" in " ".join(capsys.readouterr().out.split())


def test_a_failure_of_one_seed_is_not_told_twice(small):
    class Fails(toys.Toy):
        broken = True

        def reset(self, **options):
            if self.broken:
                raise RuntimeError("no")
            return super().reset(**options)

    with implicitq.make("iq", toys.Toy, seeds=[0, 1], eval_env=Fails, **small) as group:
        with pytest.raises(InputError, match=r"seed 0: .*no"):
            group.learn(20)
        Fails.broken = False
        assert group.learn(20).step == 40


def test_one_seed_alone_goes_on_only_if_that_is_accepted_as_inexact(whole, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    with pytest.raises(InputError, match=r"seeds_together \[3, 0\] -> None.*implicitq resume .*copy\), or .*--inexact"):
        implicitq.resume(copy / "seed-0", trust_env=True)
    with implicitq.resume(copy / "seed-0", trust_env=True, inexact=True) as agent:
        assert agent.learn(5).step == 125
    with seeds.resume(copy, trust_env=True) as group:
        assert group.step == 120, "the last step at which both have a checkpoint"
    shutil.rmtree(copy / "seed-3")
    with pytest.raises(InputError, match=r"has no seed-3, which was trained together with \[0\]"):
        seeds.resume(copy, trust_env=True)


def test_the_command_trains_stops_at_a_signal_and_goes_on(whole, tmp_path, small_flags, files_of, capsys, monkeypatch):
    out = tmp_path / "out"
    original = toys.Toy.step
    calls = 0

    def step(self: toys.Toy, action: Any):
        nonlocal calls
        calls += 1
        if calls == 99:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, action)

    with monkeypatch.context() as patch:
        patch.setattr(toys.Toy, "step", step)
        code = cli.run(["train", "iq", "--env", TOY, "--seeds", *map(str, SEEDS), "--out", str(out), *small_flags])
    assert code == 130
    told = " ".join(capsys.readouterr().out.split())
    assert "seeds 3 0, 120 steps" in told
    assert f"Go on with: implicitq resume {out}" in told
    steps = [checkpoint_steps(out / f"seed-{seed}") for seed in SEEDS]
    assert steps[0] == steps[1]
    assert 0 < steps[0][-1] < 120
    assert cli.run(["resume", str(out), "--trust-env"]) == 0
    told = capsys.readouterr().out
    assert "std over seeds" in told
    assert f"implicitq report {out}" in told
    for seed in SEEDS:
        assert files_of(out / f"seed-{seed}") == files_of(whole / f"seed-{seed}")


def test_an_environment_that_fails_stops_all_seeds_and_is_named(tmp_path, small):
    made = []

    def make() -> toys.Toy:
        made.append(toys.Breaks(50, "error") if len(made) == 1 else toys.Toy())
        return made[-1]

    group = implicitq.make("iq", make, seeds=SEEDS, **small)
    with pytest.raises(InputError, match=r"^seed 0: the environment failed in step.*the floor gave way"):
        group.learn(out=tmp_path / "out")
    group.close()
    assert [checkpoint_steps(tmp_path / "out" / f"seed-{seed}") for seed in SEEDS] == [[40, 50], [40]]
    with seeds.resume(tmp_path / "out", toys.Toy) as group:
        assert group.step == 40


def test_the_callbacks_of_one_agent_are_those_of_several_too(small):
    heard = []
    with implicitq.make("miq", toys.Toy, seeds=[3, 0], **{**small, "eval_every": 20}) as group:
        stop, every = implicitq.callbacks.stop_at(return_=-1e9), lambda event: heard.append((event.seed, event.step))
        group.learn(0, callback=None)  # as other libraries have it by default
        assert group.learn(40, callback=[stop, implicitq.callbacks.every(10, every)]).step == 20
        assert heard == [(3, 10), (0, 10), (3, 20), (0, 20)]


def test_callbacks_hear_which_agent_an_event_is_of(small):
    heard = []
    with implicitq.make("iq", TOY, seeds=SEEDS, **small) as group:
        group.learn(40, callback=lambda agent, event: heard.append((agent.config.seed, type(event), event.step)))
        assert repr(group) == f"<Seeds (3, 0): iq on {TOY}, step 40>"
        with pytest.raises(InputError, match="learns in step with other seeds"):
            group.agents[0].learn(1)
        results = group.evaluate(episodes=3)
        assert {seed: len(done.returns) for seed, done in results.items()} == {3: 3, 0: 3}
    assert [each for each in heard if each[1] is Evaluated] == [(3, Evaluated, 40), (0, Evaluated, 40)]
    assert [each[0] for each in heard if each[1] is Measured] == [3, 0, 3, 0]


def test_listeners_hear_all_seeds_and_every_event_says_which(small, tmp_path):
    class Keeper:
        def __init__(self) -> None:
            self.heard: list[Event] = []

        def on_event(self, event: Event) -> None:
            self.heard.append(event)

    keeper, ticked, best = Keeper(), [], tmp_path / "best.policy"
    with implicitq.make("iq", TOY, seeds=SEEDS, **small) as group:
        every = implicitq.callbacks.every(30, lambda event: ticked.append((event.seed, event.step)))
        group.learn(70, listeners=[keeper, every, implicitq.callbacks.keep_best(best)])
        kinds = {seed: [type(event) for event in keeper.heard if event.seed == seed] for seed in SEEDS}
        assert kinds[3] == kinds[0]
        assert {*kinds[3]} == {Started, Measured, Evaluated, CheckpointDue, Ticked, Stopped}
        assert len(keeper.heard) == 2 * len(kinds[3])
        assert ticked == [(3, 30), (0, 30), (3, 60), (0, 60)]
        evaluations = [event for event in keeper.heard if isinstance(event, Evaluated)]
        assert [(event.seed, event.step) for event in evaluations] == [(3, 40), (0, 40), (3, 70), (0, 70)]
        winner = max(evaluations, key=lambda event: event.evaluation.mean)
        kept = implicitq.load(best, trust_env=True)
        assert (kept.config.seed, kept.step) == (winner.seed, winner.step)
        assert group.learn(listeners=lambda event: event.seed != 0 or event.step < 85).step == 85


def test_listeners_of_several_seeds_that_fail_or_cannot_hear_are_named(small, tmp_path):
    def clumsy(*_: Any) -> None:
        raise ZeroDivisionError("oh")

    with implicitq.make("iq", TOY, seeds=SEEDS, **small) as group:
        for wrong in ({"callback": 3}, {"listeners": [3]}):
            with pytest.raises(InputError, match=rf"^{next(iter(wrong))} must be a function of the .*, got 3"):
                group.learn(out=tmp_path / "out", **wrong)
        assert group.directory is None
        for given in ({"callback": clumsy}, {"listeners": clumsy}):
            with pytest.raises(InputError, match=r"^seed 3: the listener clumsy failed at step \d: ZeroDiv.*: oh"):
                group.learn(**given)


def test_listeners_of_the_command_hear_several_seeds_too(small_flags, tmp_path, capsys):
    heard = []
    flags = ["iq", "--env", TOY, "--seeds", "3", "0", "--out", str(tmp_path / "out"), *small_flags, "--steps", "30"]
    assert train.run(flags, [lambda event: heard.append((event.seed, type(event)))]) == 0
    assert [seed for seed, kind in heard if kind is Evaluated] == [3, 0]
    assert "std over seeds" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [[], [0, 0], 3, ["0"], [True], [-1], "01"])
def test_seeds_that_are_none_are_refused(wrong, small):
    with pytest.raises(InputError, match=r"seeds? must be"):
        implicitq.make("iq", TOY, seeds=wrong, **small)


def test_seed_and_seeds_exclude_each_other_and_folders_must_be_free(whole, small, capsys):
    with pytest.raises(InputError, match="give seed for one agent, or seeds for several"):
        implicitq.make("iq", TOY, seed=0, seeds=SEEDS, **small)
    assert cli.run(["train", "iq", "--env", TOY, "--seed", "1", "--seeds", "1", "2"]) == 2
    assert "give --seed for one run, or --seeds for several" in " ".join(capsys.readouterr().err.split())
    with implicitq.make("iq", TOY, seeds=SEEDS, **small) as group:
        with pytest.raises(InputError, match="already holds runs; go on with: implicitq resume"):
            group.learn(out=whole)
        with pytest.raises(InputError, match="not an empty folder"):
            group.learn(out=whole / "seed-0")
