from __future__ import annotations

import numpy as np
import pytest

import toys
from implicitq import evaluate
from implicitq.envs import spaces
from implicitq.envs.making import EnvironmentMaker
from implicitq.envs.vector import EVALUATION, episode_seed
from implicitq.evaluate import Evaluator
from implicitq.types import Evaluation, InputError


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
