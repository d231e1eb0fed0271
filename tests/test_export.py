"""The policy as an ONNX model. Optional: pip install 'implicitq[export]' onnxruntime."""

from pathlib import Path

import numpy as np
import pytest

import implicitq
from implicitq.export import export_onnx


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
