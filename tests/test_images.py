"""Images: bytes up to the networks, convolutions in them, and everything else as with features."""

from __future__ import annotations

from functools import partial

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicitq
from implicitq.export import export_onnx
from implicitq.networks import ConvolutionalNetwork, Torso, torso_features
from implicitq.replay import Replay
from implicitq.types import Image, InputError
from probes import PixelProbe

FAST = {"hidden": (64,), "batch_size": 64, "learning_rate": 1e-3, "min_replay": 500, "warmup": "uniform"}
TINY = {
    **{"hidden": (8,), "steps": 80, "min_replay": 20, "batch_size": 4, "replay_size": 200, "eval_episodes": 1},
    **{"log_every": 20, "eval_every": 40, "checkpoint_every": 40},
}


def pictures(size: int, *more: int) -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(size, *more), dtype=np.uint8)


# ------------------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize(
    ("height", "width", "features"), [(84, 84, 3136), (36, 50, 1 * 2 * 64), (16, 20, 4 * 5 * 64), (10, 10, 5 * 5 * 32)]
)
@pytest.mark.parametrize("channels_first", [False, True])
def test_features_of_an_image(height, width, features, channels_first):
    image = Image(height, width, 3, channels_first)
    assert torso_features(image) == features
    torso = Torso(image, jax.random.key(0))
    assert torso(jnp.zeros((2, height * width * 3))).shape == (2, features)


def test_the_order_of_the_axes_does_not_matter():
    seen = pictures(5, 12, 14, 3).astype(np.float32) / 255
    last = Torso(Image(12, 14, 3, False), jax.random.key(0))
    first = Torso(Image(12, 14, 3, True), jax.random.key(0))
    np.testing.assert_allclose(
        last(seen.reshape(5, -1)), first(np.moveaxis(seen, -1, 1).reshape(5, -1)), rtol=1e-5, atol=1e-6
    )


def test_a_convolution_by_hand():
    image = Image(3, 3, 1, False)  # of this size the first layer moves by 1 and pads
    torso = Torso(image, jax.random.key(0))
    picture = np.arange(9, dtype=np.float32).reshape(3, 3)
    padded = np.pad(picture, 1)
    kernel = np.asarray(torso.kernels[0])[:, :, 0]  # [3, 3, 16]
    first = np.array([[np.tensordot(padded[i : i + 3, j : j + 3], kernel, 2) for j in range(3)] for i in range(3)])
    hidden = np.pad(np.maximum(first, 0), ((1, 1), (1, 1), (0, 0)))
    kernel = np.asarray(torso.kernels[1])
    second = [np.tensordot(hidden[i : i + 3, j : j + 3], kernel, 3) for i in (0, 2) for j in (0, 2)]
    np.testing.assert_allclose(torso(picture.reshape(1, 9))[0], np.maximum(np.ravel(second), 0), rtol=1e-4, atol=1e-5)


def test_training_goes_through_the_torso_and_not_through_what_stands_beside():
    network = ConvolutionalNetwork(Image(8, 8, 1, False), (8,), 2, jax.random.key(0), batch_norm=True)
    inputs, beside = jax.random.uniform(jax.random.key(1), (2, 4, 64))

    def total(network, inputs, beside):
        here, there, moved = network.train(inputs, beside)
        return jnp.sum(here**2) + jnp.sum(there**2), moved

    (_, moved), gradient = jax.value_and_grad(total, has_aux=True)(network, inputs, beside)
    assert float(jnp.abs(gradient.torso.kernels[0]).max()) > 0
    assert not np.array_equal(moved.head.norms[0].mean, network.head.norms[0].mean)
    assert float(jnp.abs(jax.grad(lambda b: total(network, inputs, b)[0])(beside)).max()) == 0


# ------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize(
    ("algorithm", "kind", "channels_first", "size", "more"),
    [
        ("miq", "Discrete", False, 10, {"members": 2}),
        ("dqn", "Discrete", True, 16, {}),
        ("sac", "Box", True, 10, {"temperature": 0.01, "hidden": (64, 64)}),
    ],
)
def test_the_square_is_found(algorithm, kind, channels_first, size, more):
    source = partial(PixelProbe, kind, channels_first, size)
    agent = implicitq.make(algorithm, source, **{**FAST, **more}, eval_every=10_000, eval_episodes=2)
    agent.learn(1_200 if algorithm == "sac" else 900)
    assert agent.evaluate(100, seed=1).mean > 0.8
    agent.close()


def test_bytes_are_stored_once_and_as_bytes():
    agent = implicitq.make("miq", PixelProbe, **{**TINY, "replay_size": 100}).learn(40)
    rows = agent._trainer.replay.rows(np.array([0]), np.array([9]))
    assert (rows["observations"].dtype, rows["observations"].shape) == (np.uint8, (9, 256))
    batch = agent._trainer.replay.sample(5)
    assert batch.observation.dtype == batch.next_observation.dtype == np.uint8
    assert agent._trainer.replay.nbytes == 100 * (256 + 1 + 4 + 1)
    assert Replay.row_bytes(84 * 84 * 4, 1, np.dtype(np.uint8), None, np.dtype(np.uint8)) == 28_230
    agent.close()


@pytest.mark.parametrize("algorithm", ["miq", "sac"])
def test_a_stopped_run_goes_on_byte_for_byte(algorithm, tmp_path, files_of):
    source = partial(PixelProbe, "Box", size=10)
    implicitq.make(algorithm, source, **TINY, num_envs=2, n_step=2).learn(out=tmp_path / "whole").close()
    implicitq.make(algorithm, source, **TINY, num_envs=2, n_step=2).learn(40, out=tmp_path / "parts").close()
    implicitq.resume(tmp_path / "parts", source).learn().close()
    whole, parts = files_of(tmp_path / "whole"), files_of(tmp_path / "parts")
    for name in ("metrics.csv", "evaluations.csv", "policy.safetensors", "checkpoints/000000080.safetensors"):
        assert parts[name] == whole[name], name


@pytest.mark.parametrize("torso", ["auto", "mlp"])
def test_a_policy_file_brings_the_torso_back(torso, tmp_path):
    agent = implicitq.make("miq", PixelProbe, **TINY, torso=torso, normalize_observations=True)
    seen = pictures(3, 16, 16, 1)
    agent.save(tmp_path / "one.policy")
    loaded = implicitq.load(tmp_path / "one.policy", PixelProbe)
    np.testing.assert_array_equal(loaded.value(seen), agent.value(seen))
    assert agent.predict(seen[0], deterministic=True)[0] == loaded.predict(seen, deterministic=True)[0][0]
    names = loaded._actor.arrays()
    assert any("torso" in name for name in names) == (torso == "auto")
    assert not any("normalizer" in name for name in names)  # x / 255 is all that images get
    with pytest.raises(InputError, match="images are of type uint8, got float64"):
        agent.predict(seen[0] / 255)
    agent.close()


@pytest.mark.filterwarnings("ignore")
def test_an_exported_model_acts_like_the_agent(tmp_path):
    pytest.importorskip("jax2onnx")
    runtime = pytest.importorskip("onnxruntime")
    agent = implicitq.make("miq", PixelProbe, **TINY)
    export_onnx(agent, tmp_path / "policy.onnx")
    seen = pictures(6, 16, 16, 1)
    session = runtime.InferenceSession(tmp_path / "policy.onnx")
    (found,) = session.run(["action"], {"observation": seen.reshape(6, -1).astype(np.float32)})
    np.testing.assert_array_equal(found[:, 0], agent.predict(seen, deterministic=True)[0])
    agent.close()


def test_features_have_no_convolutions(small):
    with pytest.raises(InputError, match="torso 'cnn' is for images"):
        implicitq.make("miq", "Pendulum-v1", **small, torso="cnn")


class Painted(gym.Env):
    """Colours that change with time, for wrappers to work on."""

    observation_space = gym.spaces.Box(0, 255, (20, 25, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.seen(), {}

    def step(self, action):
        self.time += 1
        return self.seen(), 0.0, False, self.time >= 7, {}

    def seen(self) -> np.ndarray:
        return np.full((20, 25, 3), 10 * self.time, np.uint8)


def stacked() -> gym.Env:
    return gym.wrappers.FrameStackObservation(gym.wrappers.GrayscaleObservation(Painted()), 4)


def test_frames_that_gymnasium_stacks_are_channels(tmp_path):
    agent = implicitq.make("miq", stacked, **TINY).learn(out=tmp_path / "run")
    assert agent._trainer.spec.image == Image(20, 25, 4, channels_first=True)
    agent.close()
    resumed = implicitq.resume(tmp_path / "run", stacked)  # a warning would be an error: the frames came back
    resumed.close()
