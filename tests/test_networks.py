"""Networks against a NumPy forward pass; images, which are bytes up to the networks, with convolutions in them."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicitq
import toys
from implicitq import equations
from implicitq.export import export_onnx
from implicitq.networks import MLP, BatchNorm, ConvolutionalNetwork, StateValue, Torso, torso_features
from implicitq.normalization import Normalizer
from implicitq.replay import Replay
from implicitq.types import Image, InputError, Spec
from toys import PixelProbe


def test_an_mlp_is_affine_layers_with_relu_in_between():
    network = MLP((3, 5, 4, 2), jax.random.key(0))
    inputs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    expected = inputs
    for number, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        expected = expected @ np.asarray(weight) + np.asarray(bias)
        if number < 2:
            expected = np.maximum(expected, 0)
    np.testing.assert_allclose(network(inputs), expected, rtol=1e-4, atol=1e-6)


def test_weights_start_uniform_within_the_fan_in_limit_and_biases_at_zero():
    network = MLP((300, 400, 1), jax.random.key(1))
    weights = np.asarray(network.weights[0])
    limit = np.sqrt(3 / 300)
    assert np.abs(weights).max() <= limit
    assert np.abs(weights).max() > 0.99 * limit
    assert abs(weights.std() * np.sqrt(300) - 1) < 0.02
    assert not np.asarray(network.biases[0]).any()


def test_a_state_value_gives_one_number_per_observation():
    assert StateValue(Spec(3, 1, None), (8,), jax.random.key(0))(np.zeros((5, 3), np.float32)).shape == (5,)


def test_batch_normalisation_by_the_statistics_of_both_batches_matches_hand_computed_numbers():
    """1, 3 and 5, 7: mean 4, variance 5."""
    inputs, beside, moved = BatchNorm(1).train(jnp.array([[1.0], [3.0]]), jnp.array([[5.0], [7.0]]))
    expected = (np.array([[1.0], [3.0], [5.0], [7.0]]) - 4) / np.sqrt(5.001)
    np.testing.assert_allclose(np.concatenate([inputs, beside]), expected, rtol=1e-6)
    np.testing.assert_allclose([moved.mean, moved.variance], [[0.04], [0.99 + 0.05]], rtol=1e-6)


def test_running_statistics_reach_those_of_the_data_and_normalise_it_when_acting():
    generator = np.random.default_rng(0)
    network = MLP((3, 16, 2), jax.random.key(0), batch_norm=True)

    def batch(rows: int) -> jax.Array:
        return jnp.asarray(generator.normal([1.0, -5.0, 100.0], [1.0, 0.1, 30.0], size=(rows, 3)), jnp.float32)

    seen = jax.jit(lambda network, rows: network.train(rows, jnp.zeros((0, 3)))[-1])
    for _ in range(1_000):
        network = seen(network, batch(512))
    np.testing.assert_allclose(network.norms[0].mean, [1.0, -5.0, 100.0], rtol=0.05)
    np.testing.assert_allclose(network.norms[0].variance, [1.0, 0.01, 900.0], rtol=0.05)
    rows = batch(20_000)
    trained, _, _ = network.train(rows, rows[:0])
    np.testing.assert_allclose(network(rows), trained, atol=0.1)


def test_gradients_through_batch_statistics_are_right_and_none_go_through_what_is_beside():
    network = MLP((3, 8, 2), jax.random.key(0), batch_norm=True)
    inputs, beside = jax.random.normal(jax.random.key(1), (2, 6, 3))

    def parameters(network):
        first, second = network.norms
        return [*network.weights, *network.biases, first.scale, second.scale, first.shift, second.shift]

    def by_hand(parameters, inputs):
        """The same with jnp's mean and variance, and the rows beside held fixed layer by layer."""
        rows, others = inputs, beside
        weights, biases, scales, shifts = (parameters[start : start + 2] for start in (0, 2, 4, 6))
        for number in range(2):
            both = jnp.concatenate([rows, jax.lax.stop_gradient(others)])
            both = (both - both.mean(0, keepdims=True)) / jnp.sqrt(both.var(0, keepdims=True) + 1e-3)
            both = both * scales[number][None] + shifts[number][None]
            both = both @ weights[number] + biases[number][None]
            both = jax.nn.relu(both) if number == 0 else both
            rows, others = both[:6], both[6:]
        return jnp.sum(jnp.sin(rows))

    def ours(given, inputs, beside):
        made = eqx.tree_at(parameters, network, given)
        here, there, _ = made.train(inputs, beside)
        return jnp.sum(jnp.sin(here)) + jnp.sum(there)

    expected = jax.jit(jax.grad(by_hand, argnums=(0, 1)))(parameters(network), inputs)
    *found, through_beside = jax.jit(jax.grad(ours, argnums=(0, 1, 2)))(parameters(network), inputs, beside)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    assert not np.asarray(through_beside).any()


def test_a_network_without_batch_normalisation_has_no_parameters_for_it():
    assert not jax.tree.leaves(MLP((3, 4, 2), jax.random.key(0)).norms)
    assert len(jax.tree.leaves(MLP((3, 4, 2), jax.random.key(0), batch_norm=True).norms)) == 2 * 4


FIRST = np.array([[1.0, 10.0], [3.0, 10.0]], np.float32)  # means 2 and 10, variances 1 and 0
SECOND = np.array([[6.0, 40.0]], np.float32)  # with it: means 10/3 and 20, variances 38/9 and 200


def after(*batches: np.ndarray, compiled: bool = False) -> Normalizer:
    normalizer = Normalizer.start(batches[0].shape[1])
    for batch in batches:
        normalizer = (jax.jit(Normalizer.seen) if compiled else Normalizer.seen)(normalizer, jnp.asarray(batch))
    return normalizer


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_moments_are_merged_over_batches_of_different_sizes(compiled):
    one, both = after(FIRST, compiled=compiled), after(FIRST, SECOND, compiled=compiled)
    np.testing.assert_allclose(one.mean, [2, 10], rtol=1e-6)
    np.testing.assert_allclose(one.variance, [1, 0], atol=1e-6)  # nothing is left of the variance 1 that it starts with
    np.testing.assert_allclose(both.mean, [10 / 3, 20], rtol=1e-6)
    np.testing.assert_allclose(both.variance, [38 / 9, 200], rtol=1e-6)
    assert float(both.seen_rows) == 3


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_observations_are_centred_scaled_and_clipped_at_ten(compiled):
    call = jax.jit(Normalizer.__call__) if compiled else Normalizer.__call__
    normalizer = Normalizer(jnp.array([2.0, -1.0]), jnp.array([4.0, 0.25]), jnp.array(5.0))
    rows = jnp.array([[2.0, -1.0], [4.0, 0.0], [-1.0, -2.5], [23.0, -9.0]])
    np.testing.assert_allclose(call(normalizer, rows), [[0, 0], [1, 2], [-1.5, -3], [10, -10]], rtol=1e-5)
    np.testing.assert_array_equal(call(normalizer, rows[1]), call(normalizer, rows)[1])  # one, or any leading shape
    np.testing.assert_array_equal(call(normalizer, rows.reshape(2, 2, 2)), call(normalizer, rows).reshape(2, 2, 2))


def test_before_any_batch_it_changes_nothing_but_what_is_beyond_ten():
    found = Normalizer.start(3)(jnp.array([0.5, -9.0, 12.0]))
    np.testing.assert_allclose(found, [0.5, -9.0, 10.0], rtol=1e-5)


def test_a_feature_that_never_moves_becomes_zero():
    np.testing.assert_array_equal(after(FIRST, FIRST)(jnp.asarray(FIRST))[:, 1], [0, 0])


def test_many_batches_agree_with_numpy_over_all_rows():
    """Features of very different sizes and offsets, one of which drifts."""
    generator = np.random.default_rng(0)
    scale, offset = np.array([1e-2, 1.0, 1e3]), np.array([5.0, -1.0, 2e3])
    batches = [
        (offset + scale * generator.normal((0, number / 10, 0), size=(rows, 3))).astype(np.float32)
        for number, rows in enumerate((1, 40, 7) * 20)
    ]
    rows = np.concatenate(batches).astype(np.float64)
    normalizer = after(*batches, compiled=True)
    np.testing.assert_allclose(normalizer.mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normalizer.variance, rows.var(0), rtol=1e-3)
    expected = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-6)
    np.testing.assert_allclose(normalizer(jnp.asarray(rows, jnp.float32)), expected, atol=2e-3)


def test_training_counts_the_observations_of_every_batch():
    settings = {**toys.SMALL, "min_replay": 20, "batch_size": 8, "eval_every": 10_000}
    agent = implicitq.make("iq", toys.Toy, **settings, normalize_observations=True).learn(24)
    arrays = {
        name.split("normalizer.")[-1]: a for name, a in agent._trainer.learner.arrays().items() if "normalizer." in name
    }
    assert arrays.keys() == {"mean", "variance", "seen_rows"}
    assert float(arrays["seen_rows"]) == 5 * 8  # an update after each of the steps 20 to 24
    assert (arrays["variance"] > 0).all()
    assert not np.array_equal(arrays["mean"], np.zeros(3))
    agent.close()


with_and_without_jit = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])


@with_and_without_jit
def test_implicit_q_is_temperature_times_log_policy_plus_value(transform):
    q = transform(equations.implicit_q)(jnp.log(jnp.array([0.5, 0.25])), jnp.array([1.0, -2.0]), 2.0)
    np.testing.assert_allclose(q, [1 - 2 * 0.6931472, -2 - 4 * 0.6931472], rtol=1e-6)


@with_and_without_jit
def test_the_munchausen_bonus_scales_the_log_policy_by_alpha_and_temperature(transform):
    bonus = transform(lambda log_pi: equations.munchausen_bonus(log_pi, 0.9, 0.1))(jnp.array([-1.0, -50.0]))
    np.testing.assert_allclose(bonus, [-0.09, -4.5], rtol=1e-6)


@with_and_without_jit
def test_the_munchausen_clip_bounds_the_scaled_log_policy_from_below(transform):
    bonus = transform(lambda log_pi: equations.munchausen_bonus(log_pi, 0.9, 0.1, clip=1.0))(jnp.array([-1.0, -50.0]))
    np.testing.assert_allclose(bonus, [-0.09, -0.9], rtol=1e-6)


@with_and_without_jit
def test_the_target_does_not_bootstrap_where_the_discount_is_zero(transform):
    goal = transform(equations.target)(
        jnp.array([1.0, 1.0]), jnp.array([-0.5, -0.5]), jnp.array([0.9, 0.0]), jnp.array([10.0, 10.0])
    )
    np.testing.assert_allclose(goal, [1 - 0.5 + 9, 1 - 0.5], rtol=1e-6)


def test_the_loss_is_the_mean_of_squares_without_a_half():
    assert equations.squared_loss(jnp.array([1.0, 2.0]), jnp.array([3.0, 2.0])) == 2.0


def test_polyak_moves_the_target_by_the_rate_towards_the_online_parameters():
    moved = equations.polyak({"w": jnp.array([0.0, 10.0])}, {"w": jnp.array([1.0, 20.0])}, 0.05)
    np.testing.assert_allclose(moved["w"], [0.05, 10.5], rtol=1e-6)


# Images: bytes up to the networks, convolutions in them, and everything else as with features.


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

    @jax.jit
    @partial(jax.grad, argnums=(0, 2), has_aux=True)
    def slopes(network, inputs, beside):
        here, there, moved = network.train(inputs, beside)
        return jnp.sum(here**2) + jnp.sum(there**2), moved

    (of_network, of_beside), moved = slopes(network, inputs, beside)
    assert float(jnp.abs(of_network.torso.kernels[0]).max()) > 0
    assert not np.array_equal(moved.head.norms[0].mean, network.head.norms[0].mean)
    assert float(jnp.abs(of_beside).max()) == 0


# ------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize(
    ("algorithm", "kind", "channels_first", "size", "more"),
    [
        ("miq", "Discrete", False, 10, {"members": 2}),
        ("dqn", "Discrete", True, 16, {}),
        ("sac", "Box", True, 8, {"temperature": 0.01, "hidden": (64, 64)}),
    ],
)
def test_the_square_is_found(algorithm, kind, channels_first, size, more):
    source = partial(PixelProbe, kind, channels_first, size)
    agent = implicitq.make(algorithm, source, **{**FAST, **more}, eval_every=10_000, eval_episodes=2)
    agent.learn(1_000 if algorithm == "sac" else 900)
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
