"""Films of a policy, on a task that draws itself without further packages."""

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

import implicitq
from implicitq import video
from implicitq.export import export_onnx
from toys import Toy


class Drawn(Toy):
    """Every frame has its own colour."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 25}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(end_chance=0.0, limit=6)
        self.render_mode = render_mode

    def render(self):
        return np.full((16, 24, 3), 40 * self.time, np.uint8)


class Undrawn(Drawn):
    def render(self):
        return None


gym.register("Drawn-v0", Drawn)
gym.register("Undrawn-v0", Undrawn)


def test_a_film_shows_every_frame_of_the_episodes_at_their_pace(tmp_path: Path, small):
    agent = implicitq.make("iq", "Drawn-v0", **small)
    mean = video.record(agent, tmp_path / "film.gif", episodes=2)
    with Image.open(tmp_path / "film.gif") as film:
        assert (film.n_frames, film.size, film.info["duration"]) == (12, (24, 16), 40)
    assert np.isfinite(mean)
    agent.close()


@pytest.mark.filterwarnings("ignore:.*RGB-array rendering")  # of Gymnasium, about the same
@pytest.mark.parametrize(
    ("task", "name", "sentence"),
    [
        ("Drawn-v0", "film.avi", "the video file must end in .gif or .mp4, got film.avi"),
        ("Undrawn-v0", "film.gif", "the environment renders no pictures"),
    ],
)
def test_what_cannot_be_filmed_is_said_in_a_sentence(task, name, sentence, tmp_path: Path, small):
    agent = implicitq.make("iq", task, **small)
    with pytest.raises(implicitq.InputError, match=sentence):
        video.record(agent, tmp_path / name)
    agent.close()


def test_a_missing_package_is_named(tmp_path: Path, small, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jax2onnx", None)
    agent = implicitq.make("iq", "Pendulum-v1", **small)
    with pytest.raises(implicitq.InputError, match=r"pip install 'implicitq\[export\]'"):
        export_onnx(agent, tmp_path / "policy.onnx")
    agent.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("algorithm", "task"),
    [
        ("miq", "Pendulum-v1"),
        ("miq-auto", "Pendulum-v1"),
        ("iq", "CartPole-v1"),
        ("sac", "Pendulum-v1"),
        ("iq", "FrozenLake-v1"),
    ],
)
def test_the_model_acts_like_the_agent(algorithm, task, tmp_path: Path, small):
    pytest.importorskip("jax2onnx")
    runtime = pytest.importorskip("onnxruntime")
    small.pop("bins")
    agent = implicitq.make(algorithm, task, **small, normalize_observations=True)
    export_onnx(agent, tmp_path / "policy.onnx")
    session = runtime.InferenceSession(tmp_path / "policy.onnx")
    raw = [agent.observation_space.sample() for _ in range(5)]
    rows = np.stack([implicitq.agent.spaces.flatten_one(agent.observation_space, one) for one in raw])
    (found,) = session.run(["action"], {"observation": rows})
    expected = np.stack([agent.predict(one, deterministic=True)[0] for one in raw])
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)
    agent.close()
