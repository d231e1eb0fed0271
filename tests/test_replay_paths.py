"""Paths from the replay: right at terminations, time limits, the wrap of the ring, and with several environments."""

import numpy as np
import pytest

from implicitq.replay import Replay

GAMMA = 0.5


def filled(*, rows, num_envs, ends, steps, n_step, later_steps=True):
    """Environment e observes (e, time, episode) at every time and acts with its time; reward 1 + time.

    `ends` maps (time, environment) to "terminated" or "truncated".
    """
    replay = Replay(
        rows=rows,
        num_envs=num_envs,
        observation_size=3,
        action_dimensions=1,
        action_dtype=np.dtype(np.int32),
        generator=np.random.default_rng(0),
        discount=GAMMA,
        n_step=n_step,
        later_steps=later_steps,
    )
    episode = np.zeros(num_envs)

    def observe(time):
        return np.stack([np.array([e, time, episode[e]], np.float32) for e in range(num_envs)])

    replay.begin(np.ones(num_envs, bool), observe(0))
    for time in range(steps):
        over = [ends.get((time, e)) for e in range(num_envs)]
        terminated, truncated = (np.array([kind == name for kind in over]) for name in ("terminated", "truncated"))
        actions, rewards = np.full((num_envs, 1), time), np.full(num_envs, 1.0 + time)
        replay.add(actions, rewards, terminated, truncated, observe(time + 1))
        ended = terminated | truncated
        if ended.any():
            episode[ended] += 1
            replay.begin(ended, observe(time + 1))
    return replay


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("rows", [200, 36])  # 36: the rings wrap several times
def test_a_path_follows_its_episode_to_its_end_and_no_further(num_envs, rows):
    ends = {(5, 0): "terminated", (9, 0): "truncated", (17, 0): "terminated", (7, 1): "truncated"}
    steps = 40
    batch = filled(rows=rows, num_envs=num_envs, ends=ends, steps=steps, n_step=4).sample(512)
    assert batch.later_steps.observation.shape == (512, 3, 3)
    assert batch.later_steps.action.shape == (512, 3, 1)
    lengths = set()
    for i in range(512):
        env, time, episode = (int(x) for x in batch.observation[i])
        last = min((t for (t, e) in ends if e == env and t >= time), default=steps - 1)
        length = min(4, last - time + 1)
        lengths.add(length)
        times = time + np.arange(1, length)
        later = batch.later_steps
        np.testing.assert_array_equal(later.weight[i], [GAMMA**k if k < length else 0 for k in (1, 2, 3)])
        assert batch.later_weight[i] == sum(GAMMA**k for k in range(1, length))
        np.testing.assert_array_equal(later.observation[i, : length - 1, 1], times)
        assert ([env, episode] == later.observation[i, : length - 1, [0, 2]].T).all()
        np.testing.assert_array_equal(later.action[i, : length - 1, 0], times)
        assert batch.reward[i] == sum(GAMMA**k * (1 + time + k) for k in range(length))
        terminated = ends.get((time + length - 1, env)) == "terminated"
        assert batch.discount[i] == (0 if terminated else GAMMA**length)
        np.testing.assert_array_equal(batch.next_observation[i][:2], [env, time + length])
    assert lengths == {1, 2, 3, 4}


def test_without_a_path_the_batch_is_the_same_and_has_no_steps():
    plain = filled(rows=50, num_envs=1, ends={}, steps=20, n_step=3, later_steps=False).sample(8)
    paths = filled(rows=50, num_envs=1, ends={}, steps=20, n_step=3).sample(8)
    assert plain.later_steps is None
    for first, second in zip(plain, paths._replace(later_steps=None), strict=True):
        np.testing.assert_array_equal(first, second)
    assert filled(rows=50, num_envs=1, ends={}, steps=20, n_step=1).sample(8).later_steps is None
