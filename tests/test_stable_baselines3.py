"""The agent in the hands of a peer's tools. Optional: pip install 'implicitq[peers]'."""

import gymnasium as gym
import numpy as np
import pytest

import implicitq
import toys

evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
vec_env = pytest.importorskip("stable_baselines3.common.vec_env")


@pytest.mark.parametrize("task", ["Pendulum-v1", "CartPole-v1"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluate_policy_takes_the_agent_unchanged(task, deterministic):
    agent = implicitq.make("miq", task, hidden=(16,))
    env = vec_env.DummyVecEnv([lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(task)) for _ in range(3)])
    returns, lengths = evaluation.evaluate_policy(
        agent, env, n_eval_episodes=6, deterministic=deterministic, return_episode_rewards=True, warn=False
    )
    assert len(returns) == len(lengths) == 6
    assert np.isfinite(returns).all()


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_evaluation_of_sb3_contrib_passes_its_masks_to_the_agent(deterministic, small):
    maskable = pytest.importorskip("sb3_contrib.common.maskable.evaluation")
    agent = implicitq.make("miq", toys.MethodToy, **small)
    env = vec_env.DummyVecEnv([lambda: gym.wrappers.RecordEpisodeStatistics(toys.MethodToy()) for _ in range(3)])
    returns, _ = maskable.evaluate_policy(  # the environment refuses what its mask forbids
        agent, env, n_eval_episodes=6, deterministic=deterministic, return_episode_rewards=True, warn=False
    )
    assert len(returns) == 6
    agent.close()
