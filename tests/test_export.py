"""The policy as an ONNX model. Optional: pip install 'implicitq[export]' onnxruntime."""

import json
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import implicitq
from implicitq.export import action_form, export_onnx, observation_layout

DOCS = Path(__file__).parent.parent / "docs"


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
        r"tests/test_export.py runs it -->\n```python\n(.*?)```", (DOCS / "sharing.md").read_text(), re.S
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
    assert "masks" in about["implicitq.action_masks"] or "mask" in about["implicitq.action_masks"]


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
