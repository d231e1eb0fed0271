"""Wrappers of Gymnasium around a user's environment."""

from __future__ import annotations

import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import implicitq
import toys
from implicitq.envs.making import EnvironmentMaker
from implicitq.evaluate import Evaluator


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


@pytest.mark.parametrize(
    ("wrapper", "sentence"),
    [
        (
            gym.wrappers.NormalizeObservation,
            "evaluations use others than training, .*; use normalize_obs",
        ),
        (
            gym.wrappers.NormalizeReward,
            "evaluations count rewards as NormalizeReward scales them, .*; give an eval",
        ),
    ],
)
def test_statistics_that_nothing_shares_are_told(wrapper, sentence):
    with pytest.warns(UserWarning, match=sentence):
        Evaluator(EnvironmentMaker(lambda: gym.wrappers.TimeLimit(wrapper(toys.Toy()), 5)), 1, 0).close()


def test_frozen_statistics_are_as_good_as_none():
    def frozen() -> gym.Env:
        env = gym.wrappers.NormalizeObservation(toys.Toy())
        env.update_running_mean = False
        return env

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Evaluator(EnvironmentMaker(frozen), 1, 0).close()
