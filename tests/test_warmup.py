"""Who acts before the first update: the untrained policy, or uniform actions."""

from __future__ import annotations

import numpy as np
import pytest

from implicitq import InputError, configs
from implicitq.envs.making import EnvironmentMaker
from implicitq.train import Trainer
from toys import SMALL, DiscreteToy, MultiDiscreteToy, Toy

WARMUP = 600
CASES = [
    ("iq", Toy, [3, 3]),
    ("iq", DiscreteToy, [3]),
    ("iq", MultiDiscreteToy, [2, 4]),
    ("iq-gaussian", Toy, None),
    ("sac", Toy, None),
    ("dqn", DiscreteToy, [3]),
]


def stored_actions(algorithm: str, toy: type[Toy], steps: int, **values) -> np.ndarray:
    """The replay's actions [steps, D] in the order they were taken."""
    fields = vars(configs.resolve(algorithm, "toy"))
    small = {name: value for name, value in SMALL.items() if name in fields}
    settings = {**small, "min_replay": WARMUP, "eval_every": 10_000, **values}
    trainer = Trainer(configs.resolve(algorithm, "toy", **settings), EnvironmentMaker(toy))
    taken = []
    add = trainer.replay.add

    def watched(actions: np.ndarray, *rest: np.ndarray) -> None:
        taken.append(np.array(actions, float))
        add(actions, *rest)

    trainer.replay.add = watched  # type: ignore[method-assign]
    for _ in trainer.run(steps):
        pass
    return np.concatenate(taken)


@pytest.mark.parametrize(("algorithm", "toy", "categories"), CASES)
def test_a_uniform_warmup_takes_every_action_equally_often(algorithm, toy, categories):
    actions = stored_actions(algorithm, toy, WARMUP, warmup="uniform", num_envs=2)
    assert len(actions) == WARMUP
    for dimension, column in enumerate(actions.T):
        if categories is None:  # numbers in [-1, 1]: ten equal parts
            assert column.min() >= -1
            assert column.max() <= 1
            counts = np.histogram(column, bins=10, range=(-1, 1))[0]
        else:
            counts = np.bincount(column.astype(int), minlength=categories[dimension])
            assert len(counts) == categories[dimension]
        expected = WARMUP / len(counts)
        assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)  # five standard deviations


def test_the_policy_acts_in_a_policy_warmup_and_after_a_uniform_one():
    """A fixed, very sharp policy repeats itself; uniform actions do not."""
    sharp = {"temperature": 1e-6, "softmax": "scaled", "learning_rate": 1e-9, "min_replay": 50}
    by_policy = stored_actions("iq", DiscreteToy, 100, **sharp)
    uniform = stored_actions("iq", DiscreteToy, 100, warmup="uniform", **sharp)

    def most_common(actions: np.ndarray) -> float:
        return np.bincount(actions[:, 0].astype(int)).max() / len(actions)

    assert most_common(by_policy) > 0.6
    assert most_common(uniform[:50]) < 0.6
    assert most_common(uniform[50:]) > 0.6


def test_warmup_is_either_of_two():
    with pytest.raises(InputError, match="warmup must be"):
        configs.resolve("iq", "Pendulum-v1", warmup="random")
