from __future__ import annotations

import itertools

import gymnasium as gym
import numpy as np
import pytest

import implicitq
import toys
from implicitq import InputError
from implicitq.policies.choices import bin_centres


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
    with pytest.raises(InputError, match=r"there is no policy file .*policy.safetensors"):
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
