"""Films of a policy, on a task that draws itself without further packages; and the policy as an ONNX model."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import implicitq
from implicitq import video
from implicitq.export import action_form, export_onnx, observation_layout
from toys import Toy

DOCS = Path(__file__).parent.parent / "docs"


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
    mean = video.record(agent, str(tmp_path / "film.gif"), episodes=2)
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
        ("iq-auto", "Pendulum-v1"),
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
    if algorithm == "iq-auto":
        small |= {"logits": "cosines", "softmax": "steady"}
    agent = implicitq.make(algorithm, task, **small, normalize_observations=True)
    export_onnx(agent, tmp_path / "policy.onnx")
    session = runtime.InferenceSession(tmp_path / "policy.onnx")
    raw = [agent.observation_space.sample() for _ in range(5)]
    rows = np.stack([implicitq.agent.spaces.flatten_one(agent.observation_space, one) for one in raw])
    (found,) = session.run(["action"], {"observation": rows})
    expected = np.stack([agent.predict(one, deterministic=True)[0] for one in raw])
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)
    agent.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", ["Pendulum-v1", "FrozenLake-v1"])
def test_the_example_of_the_docs_plays_an_episode_as_the_agent_does(task, tmp_path: Path, small):
    pytest.importorskip("jax2onnx")
    pytest.importorskip("onnxruntime")
    with implicitq.make("iq", task, **small) as agent:
        export_onnx(agent, tmp_path / "policy.onnx")
        env = gym.make(task)
        observation, _ = env.reset(seed=0)
        total, done = 0.0, False
        while not done:
            action, _ = agent.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, done = total + float(reward), terminated or truncated
    (example,) = re.findall(
        r"tests/test_video.py runs it -->\n```python\n(.*?)```", (DOCS / "sharing.md").read_text(), re.S
    )
    (tmp_path / "implicitq.py").write_text("raise ImportError('the example must do without')")
    (tmp_path / "example.py").write_text(example)
    words = [sys.executable, "example.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(total, rel=1e-3)


@pytest.mark.filterwarnings("ignore")
def test_the_model_says_what_it_is(tmp_path: Path, small):
    pytest.importorskip("jax2onnx")
    runtime = pytest.importorskip("onnxruntime")
    with implicitq.make("miq", "Pendulum-v1", seed=3, **small) as agent:
        export_onnx(agent, tmp_path / "policy.onnx")
    about = runtime.InferenceSession(tmp_path / "policy.onnx").get_modelmeta().custom_metadata_map
    trained = json.loads(about["implicitq.trained"])
    assert (trained["algorithm"], trained["env"], trained["seed"], trained["step"]) == ("miq", "Pendulum-v1", 3, 0)
    assert json.loads(about["implicitq.action"])["high"] == [2.0]
    assert json.loads(about["implicitq.observation"])[0]["features"] == 3
    assert about["implicitq.action_masks"].startswith("not part of the model")


def test_the_layout_rebuilds_a_flat_observation():
    space = spaces.Dict(
        z=spaces.Box(-1, 1, (2, 2)),
        a=spaces.Tuple([spaces.Discrete(3, start=5), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)]),
    )
    observation = space.sample()
    rows = []
    for part in observation_layout(space):
        value = observation
        for key in part["path"]:
            value = value[key]
        if part["encoding"] == "one-hot":
            pairs = zip(np.ravel(value), part["sizes"], part["start"], strict=True)
            rows += [np.eye(size)[int(number) - start] for number, size, start in pairs]
        else:
            rows.append(np.ravel(value))
        assert sum(map(len, rows)) == part["first"] + part["features"]
    np.testing.assert_array_equal(
        np.concatenate(rows).astype(np.float32), implicitq.agent.spaces.flatten_one(space, observation)
    )


def test_the_form_of_actions_is_told():
    assert action_form(spaces.Discrete(3, start=5)) | {"output": ""} == {
        **{"space": "Discrete", "shape": [], "dtype": "int64", "output": ""},
        **{"sizes": [3], "start": [5]},
    }
    assert action_form(spaces.MultiBinary(2))["sizes"] == [2, 2]
    assert action_form(spaces.Box(-1, 2, (2,)))["low"] == [-1.0, -1.0]
