from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from implicitq.replay import Replay
from implicitq.types import InputError

GAMMA = 0.9
GOES_ON, TERMINATES, IS_CUT = range(3)


def make_replay(rows: int, num_envs: int, seed: int = 0, n_step: int = 1, parts: int = 1) -> Replay:
    return Replay(
        rows=rows,
        num_envs=num_envs,
        observation_size=1,
        action_dimensions=1,
        action_dtype=np.dtype(np.uint16),
        generator=np.random.default_rng(seed),
        discount=GAMMA,
        n_step=n_step,
        parts=parts,
    )


class Model:
    """What a replay should be: plain lists of rows. A row is (observation, action, reward, fate), or (observation,)."""

    def __init__(self, capacity: int, num_envs: int) -> None:
        self.capacity = capacity
        self.rings: list[list[tuple]] = [[] for _ in range(num_envs)]  # completed rows, since the start
        self.open = [0.0] * num_envs  # newest observations

    def held(self) -> dict[float, tuple[int, int]]:
        """Observations of transitions that fit in the memory -> (ring, row): all but one row, which is the open one."""
        return {
            row[0]: (ring, number)
            for ring, rows in enumerate(self.rings)
            for number, row in enumerate(rows)
            if len(row) > 1 and number >= len(rows) - (self.capacity - 1)
        }

    def expected(self, ring: int, number: int, n_step: int) -> tuple[float, float, float, float]:
        """Action, n-step return, discount and next observation of the transition that starts in this row."""
        rows = self.rings[ring]
        total, weight, action = 0.0, 1.0, rows[number][1]
        for offset in range(n_step):
            _, _, reward, fate = rows[number + offset]
            total, weight, after = total + weight * reward, weight * GAMMA, number + offset + 1
            if fate == TERMINATES:
                weight = 0.0
            if fate != GOES_ON or after == len(rows):
                break
        following = rows[after][0] if after < len(rows) else self.open[ring]
        return action, total, weight, following


def play(replay: Replay, model: Model, fates: list[list[int]], numbers: np.random.Generator) -> None:
    """Feed the same steps to both. Every observation has a number of its own."""
    num_envs = len(model.rings)
    count = 0

    def fresh() -> np.ndarray:
        nonlocal count
        count += num_envs
        return np.arange(count - num_envs, count, dtype=np.float32)[:, None]

    first = fresh()
    replay.begin(np.ones(num_envs, bool), first)
    model.open = first[:, 0].tolist()
    for step in fates:
        fate = np.array(step)
        actions = numbers.integers(1000, size=(num_envs, 1))
        rewards = numbers.integers(-50, 50, size=num_envs).astype(float)
        observations = fresh()
        replay.add(actions, rewards, fate == TERMINATES, fate == IS_CUT, observations)
        for ring in range(num_envs):
            row = (model.open[ring], int(actions[ring, 0]), float(rewards[ring]), step[ring])
            model.rings[ring].append(row)
            model.open[ring] = float(observations[ring, 0])
            if step[ring] != GOES_ON:
                model.rings[ring].append((model.open[ring],))
        if (fate != GOES_ON).any():
            observations = fresh()
            replay.begin(fate != GOES_ON, observations)
            for ring in np.flatnonzero(fate != GOES_ON):
                model.open[ring] = float(observations[ring, 0])


@st.composite
def stories(draw):
    num_envs = draw(st.integers(1, 3))
    n_step = draw(st.integers(1, 5))
    capacity = draw(st.integers(n_step + 2, 20))
    fate = st.sampled_from([GOES_ON] * 6 + [TERMINATES, IS_CUT])
    steps = draw(st.lists(st.lists(fate, min_size=num_envs, max_size=num_envs), min_size=1, max_size=50))
    return num_envs, n_step, capacity, steps


@settings(max_examples=150, deadline=None)
@given(stories(), st.integers(0, 2**16))
def test_every_sampled_transition_is_a_true_one(story, seed):
    num_envs, n_step, capacity, steps = story
    replay, model = make_replay(capacity * num_envs, num_envs, seed, n_step), Model(capacity, num_envs)
    play(replay, model, steps, np.random.default_rng(seed))
    held = model.held()
    batch = replay.sample(64)
    for index in range(64):
        start = float(batch.observation[index, 0])
        assert start in held, "a row that was overwritten, never written, or has no action"
        action, total, weight, following = model.expected(*held[start], n_step)
        assert batch.action[index, 0] == action
        assert batch.next_observation[index, 0] == following
        np.testing.assert_allclose(batch.reward[index], total, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(batch.discount[index], weight, rtol=1e-5)


def test_termination_and_time_limit_differ_only_in_the_discount():
    outcomes = {}
    for fate in (TERMINATES, IS_CUT):
        replay, model = make_replay(10, 1, n_step=3), Model(10, 1)
        play(replay, model, [[GOES_ON], [fate]], np.random.default_rng(0))
        batch = replay.sample(64)
        chosen = batch.observation[:, 0] == 0
        outcomes[fate] = batch.reward[chosen][0], batch.discount[chosen][0], batch.next_observation[chosen][0, 0]
    assert outcomes[TERMINATES][::2] == outcomes[IS_CUT][::2]
    assert outcomes[TERMINATES][1] == 0
    np.testing.assert_allclose(outcomes[IS_CUT][1], GAMMA**2, rtol=1e-6)


def test_sampling_is_uniform_over_all_transitions_held():
    replay, model = make_replay(3 * 12, 3), Model(12, 3)
    fates = np.random.default_rng(1).choice([GOES_ON, TERMINATES, IS_CUT], p=[0.7, 0.15, 0.15], size=(40, 3))
    play(replay, model, fates.tolist(), np.random.default_rng(0))
    held = sorted(model.held())
    draws = 400 * len(held)
    found, counts = np.unique(replay.sample(draws).observation[:, 0], return_counts=True)
    assert found.tolist() == held
    # Chi-square with len(held) - 1 degrees of freedom; five standard deviations above its mean.
    freedom = len(held) - 1
    assert ((counts - 400) ** 2 / 400).sum() < freedom + 5 * np.sqrt(2 * freedom)


def test_rings_of_different_lengths_are_sampled_uniformly_before_they_are_full():
    replay, model = make_replay(2 * 100, 2), Model(100, 2)
    play(replay, model, [[GOES_ON, TERMINATES]] * 20, np.random.default_rng(0))
    rings = np.array([model.held()[float(o)][0] for o in replay.sample(4000).observation[:, 0]])
    assert abs(rings.mean() - 0.5) < 0.05


@pytest.mark.parametrize(("parts", "num_envs"), [(2, 1), (3, 2)])
def test_every_transition_belongs_to_one_part_of_the_batches_for_good(parts, num_envs):
    """While the rings fill and when they have come round. The numbers of observations tell the transitions apart."""
    replay = make_replay(60 * num_envs, num_envs, parts=parts)
    ends, goes_on = np.ones(num_envs, bool), np.zeros(num_envs, bool)
    count, owners = 0, {}
    for step in range(150):
        numbers = np.arange(count, count + num_envs, dtype=np.float32)[:, None]
        if step == 0 or step % 7 == 0:
            replay.begin(ends, numbers)
        count += num_envs
        after = numbers + num_envs if step % 7 != 6 else numbers + 0.5
        replay.add(np.zeros((num_envs, 1), int), np.ones(num_envs), ends if step % 7 == 6 else goes_on, goes_on, after)
        if step in (30, 55, 80, 149):
            drawn = np.concatenate([replay.sample(10 * parts + 1).observation.reshape(parts, 10) for _ in range(99)], 1)
            for part, observations in enumerate(drawn):
                assert {owners.setdefault(number, part) for number in observations.tolist()} == {part}
            shares = np.array([len(set(observations)) for observations in drawn.tolist()])
            assert shares.sum() > 0.9 * num_envs * min(step, 50), "what is held is drawn by one part or another"
            assert shares.min() > 0.2 * shares.sum(), "and divided about evenly"


def test_a_part_without_rows_of_its_own_takes_those_of_others():
    replay = make_replay(8, 1, parts=4)
    replay.begin(np.ones(1, bool), np.zeros((1, 1), np.float32))
    end = np.array([False])
    replay.add(np.zeros((1, 1), int), np.ones(1), end, end, np.ones((1, 1), np.float32))
    assert (replay.sample(8).observation == 0).all()


def test_a_million_humanoid_transitions_fit_in_one_and_a_half_gigabytes():
    replay = Replay(
        rows=1_000_000,
        num_envs=1,
        observation_size=348,
        action_dimensions=17,
        action_dtype=np.dtype(np.uint8),
        generator=np.random.default_rng(0),
        discount=GAMMA,
    )
    assert 1.39e9 < replay.nbytes < 1.5e9


@settings(max_examples=60, deadline=None)
@given(stories(), st.integers(0, 2**16), st.data())
def test_a_replay_restored_from_segments_goes_on_with_the_same_samples(story, seed, data):
    """Segments are cut at random moments, as checkpoints do; older rows may have been overwritten meanwhile."""
    num_envs, n_step, capacity, steps = story
    replay, model = make_replay(capacity * num_envs, num_envs, seed, n_step), Model(capacity, num_envs)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(steps)), max_size=4)) | {len(steps)})
    segments, done = [], np.zeros(num_envs, np.int64)
    numbers = np.random.default_rng(seed)

    class Recorder:
        """Takes a segment after the steps in `cuts`, on the way of `play`."""

        def __init__(self) -> None:
            self.count = 0

        def begin(self, which, observations):
            replay.begin(which, observations)

        def add(self, *step):
            nonlocal done
            replay.add(*step)
            self.count += 1
            if self.count in cuts:
                first, until = np.maximum(done, replay.oldest), replay.written
                segments.append((replay.rows(first, until), first, until))
                done = until

    play(Recorder(), model, steps, numbers)  # pyright: ignore
    other = make_replay(capacity * num_envs, num_envs, seed + 1, n_step)
    for rows, first, until in segments:
        other.restore_rows(rows, first, until)
    other.restore_state(replay.state(), np.array(model.open, np.float32)[:, None])
    for _ in range(3):
        for one, another in zip(replay.sample(16), other.sample(16), strict=True):
            np.testing.assert_array_equal(one, another)


def test_a_cleared_replay_has_no_rows_left_to_sample():
    replay, model = make_replay(2 * 50, 2), Model(50, 2)
    play(replay, model, [[GOES_ON, TERMINATES]] * 20, np.random.default_rng(0))
    replay.clear()
    fresh = Model(50, 2)
    play(replay, fresh, [[TERMINATES, GOES_ON]] * 3, np.random.default_rng(1))
    assert set(replay.sample(200).observation[:, 0].tolist()) == set(fresh.held())


def test_closing_open_episodes_keeps_their_transitions_and_cuts_their_returns():
    replay, model = make_replay(20, 1, n_step=5), Model(20, 1)
    play(replay, model, [[GOES_ON]] * 3, np.random.default_rng(0))
    replay.end_open_episodes(np.ones(1, bool))
    replay.begin(np.ones(1, bool), np.array([[99.0]], np.float32))
    batch = replay.sample(100)
    assert set(batch.observation[:, 0].tolist()) == {0.0, 1.0, 2.0}
    assert set(batch.next_observation[:, 0].tolist()) == {3.0}
    assert (batch.discount > 0).all()


def test_segments_of_another_shape_or_count_are_refused():
    replay, model = make_replay(20, 1), Model(20, 1)
    play(replay, model, [[GOES_ON]] * 5, np.random.default_rng(0))
    rows = replay.rows(np.array([0]), np.array([5]))
    with pytest.raises(InputError, match=r"a replay segment has observations of float32\[5, 1\], expected"):
        make_replay(20, 1).restore_rows(rows, np.array([0]), np.array([4]))
    other = make_replay(20, 1)
    other.restore_rows(replay.rows(np.array([0]), np.array([4])), np.array([0]), np.array([4]))
    with pytest.raises(InputError, match=r"the replay has \[4\] rows, expected \[5\]"):
        other.restore_state(replay.state(), np.zeros((1, 1), np.float32))


HALF = 0.5


def filled(*, rows, num_envs, ends, steps, n_step, later_steps=True, visited=False):
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
        discount=HALF,
        n_step=n_step,
        later_steps=later_steps,
        visited=visited,
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
        np.testing.assert_array_equal(later.weight[i], [HALF**k if k < length else 0 for k in (1, 2, 3)])
        assert batch.later_weight[i] == sum(HALF**k for k in range(1, length))
        np.testing.assert_array_equal(later.observation[i, : length - 1, 1], times)
        assert ([env, episode] == later.observation[i, : length - 1, [0, 2]].T).all()
        np.testing.assert_array_equal(later.action[i, : length - 1, 0], times)
        assert batch.reward[i] == sum(HALF**k * (1 + time + k) for k in range(length))
        terminated = ends.get((time + length - 1, env)) == "terminated"
        assert batch.discount[i] == (0 if terminated else HALF**length)
        np.testing.assert_array_equal(batch.next_observation[i][:2], [env, time + length])
    assert lengths == {1, 2, 3, 4}


def test_without_a_path_the_batch_is_the_same_and_has_no_steps():
    plain = filled(rows=50, num_envs=1, ends={}, steps=20, n_step=3, later_steps=False).sample(8)
    paths = filled(rows=50, num_envs=1, ends={}, steps=20, n_step=3).sample(8)
    assert plain.later_steps is None
    for first, second in zip(plain, paths._replace(later_steps=None), strict=True):
        np.testing.assert_array_equal(first, second)
    assert filled(rows=50, num_envs=1, ends={}, steps=20, n_step=1).sample(8).later_steps is None


def test_visited_states_are_those_of_the_latest_steps_evenly_spaced():
    batch = filled(rows=10_000, num_envs=1, ends={}, steps=9_000, n_step=1, visited=True).sample(8)
    np.testing.assert_array_equal(batch.visited.observation[:, 1], 8_999 - 128 * np.arange(64))
    plain = filled(rows=10_000, num_envs=1, ends={}, steps=9_000, n_step=1).sample(8)
    assert plain.visited is None
    for first, second in zip(plain, batch._replace(visited=None), strict=True):  # nothing is drawn for them
        np.testing.assert_array_equal(first, second)


def test_visited_states_are_evenly_spaced_over_what_there_is_as_long_as_that_is_less():
    visited = filled(rows=10_000, num_envs=1, ends={}, steps=6_400, n_step=1, visited=True).sample(8).visited
    np.testing.assert_array_equal(visited.observation[:, 1], 6_399 - np.arange(64) * 6_399 // 64)


@pytest.mark.parametrize("num_envs", [1, 3, 64, 100])
@pytest.mark.parametrize("steps", [1, 2, 3, 20, 300])
def test_visited_states_are_lately_seen_ones_of_all_rings_in_which_an_action_was_taken(num_envs, steps):
    ends = {(time, e): "terminated" for time in range(0, steps, 3) for e in range(0, num_envs, 2)}
    replay = filled(rows=40 * num_envs, num_envs=num_envs, ends=ends, steps=steps, n_step=1, visited=True)
    env, time, episode = replay.sample(8).visited.observation.astype(int).T
    assert len(env) == {1: 64, 3: 63, 64: 64, 100: 50}[num_envs]  # every second ring of the hundred
    assert set(env) == set(range(0, num_envs, 2 if num_envs == 100 else 1))
    assert (time < steps).all()  # the newest observation has no action yet
    assert (time >= steps - 40).all()
    assert (episode == [sum(e == env and end < t for end, env in ends) for e, t in zip(env, time, strict=True)]).all()


def test_visited_states_come_with_their_masks():
    replay = Replay(
        rows=50,
        num_envs=1,
        observation_size=1,
        action_dimensions=1,
        action_dtype=np.dtype(np.uint8),
        generator=np.random.default_rng(0),
        discount=HALF,
        mask_shape=(1, 3),
        visited=True,
    )
    masks = np.eye(3, dtype=bool)[:, None, None]  # [time, E, D, N]
    replay.begin(np.ones(1, bool), np.zeros((1, 1)), masks[0])
    for time in range(1, 9):
        no = np.zeros(1, bool)
        replay.add(np.zeros((1, 1)), np.zeros(1), no, no, np.full((1, 1), time), masks[time % 3])
    visited = replay.sample(4).visited
    np.testing.assert_array_equal(visited.mask[:, 0], np.eye(3, dtype=bool)[visited.observation[:, 0].astype(int) % 3])
