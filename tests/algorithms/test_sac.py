"""SAC's three losses against NumPy, and what its temperature does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicitq import configs
from implicitq.algorithms.sac import SAC, critic_loss, policy_loss, temperature_loss
from implicitq.networks import TwinActionValue
from implicitq.policies.tanh_gaussian import TanhGaussianPolicy
from implicitq.types import Spec, Transition

SPEC = Spec(observation_size=3, action_dimensions=2, categories=None)
BATCH = Transition(
    observation=np.array([[0.1, -0.2, 0.3], [1.0, 0.5, -0.5]], np.float32),
    action=np.array([[0.2, -0.9], [1.0, 0.0]], np.float32),
    reward=np.array([1.0, -2.0], np.float32),
    discount=np.array([0.9, 0.0], np.float32),
    next_observation=np.array([[0.4, 0.0, 0.1], [0.0, 1.0, 0.2]], np.float32),
)


def linear(network, *inputs):
    """A network without hidden layers, in float64."""
    return np.concatenate(inputs, axis=1).astype(float) @ np.asarray(network.weights[0], float) + np.asarray(
        network.biases[0]
    )


def numpy_sample(policy, observation, key):
    mean, raw = np.split(linear(policy.network, observation), 2, axis=1)
    scale = np.log1p(np.exp(raw)) + 1e-3
    noise = np.asarray(jax.random.normal(key, mean.shape), float)
    action = np.tanh(mean + scale * noise)
    log_normal = -0.5 * noise**2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
    return action, np.sum(log_normal - np.log(1 - action**2), axis=1)


def numpy_minimum(critics, observation, action):
    both = [linear(critic.network, observation, action)[:, 0] for critic in (critics.first, critics.second)]
    return np.minimum(*both)


@pytest.fixture
def parts():
    keys = jax.random.split(jax.random.key(0), 3)
    policy = TanhGaussianPolicy(SPEC, (), keys[0])
    return policy, TwinActionValue(SPEC, (), keys[1]), TwinActionValue(SPEC, (), keys[2])


@pytest.mark.parametrize("compiled", [False, True])
def test_the_critic_loss_is_the_soft_bellman_error_of_both_critics(parts, compiled):
    policy, critics, target = parts
    key = jax.random.key(7)
    function = jax.jit(critic_loss) if compiled else critic_loss
    found, _ = function(critics, target, policy, jnp.float32(0.3), BATCH, key)
    action, log_pi = numpy_sample(policy, BATCH.next_observation, key)
    goal = BATCH.reward + BATCH.discount * (numpy_minimum(target, BATCH.next_observation, action) - 0.3 * log_pi)
    errors = [linear(c.network, BATCH.observation, BATCH.action)[:, 0] - goal for c in (critics.first, critics.second)]
    assert found == pytest.approx(sum(np.mean(error**2) for error in errors), rel=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_policy_loss_is_the_entropy_regularised_value(parts, compiled):
    policy, critics, _ = parts
    key = jax.random.key(3)
    function = jax.jit(policy_loss) if compiled else policy_loss
    found, (entropy, value) = function(policy, critics, jnp.float32(0.3), BATCH.observation, key)
    action, log_pi = numpy_sample(policy, BATCH.observation, key)
    assert found == pytest.approx(np.mean(0.3 * log_pi - numpy_minimum(critics, BATCH.observation, action)), rel=1e-5)
    assert entropy == pytest.approx(-np.mean(log_pi), rel=1e-5)
    assert value == -found


def test_the_temperature_rises_when_the_policy_is_less_random_than_wanted():
    slope = jax.grad(temperature_loss)
    assert slope(jnp.log(0.5), jnp.float32(-3.0), -2.0) == pytest.approx(0.5 * (-3.0 + 2.0))  # descent: it rises
    assert slope(jnp.log(0.5), jnp.float32(-1.0), -2.0) == pytest.approx(0.5 * (-1.0 + 2.0))  # it falls


@pytest.mark.parametrize(("setting", "moves"), [("auto", True), (0.2, False)])
def test_only_an_automatic_temperature_moves(setting, moves):
    algorithm = SAC(configs.resolve("sac", "some-task", hidden=(4,), temperature=setting), SPEC)
    state = algorithm.init(jax.random.key(0))
    after, metrics = algorithm.update(state, BATCH, jax.random.key(1))
    first = 1.0 if setting == "auto" else setting
    assert metrics["temperature"] == pytest.approx(first)
    assert (float(after.online.log_temperature) != float(state.online.log_temperature)) is moves


def test_the_defaults_are_the_papers():
    config = configs.resolve("sac", "HalfCheetah-v5")
    assert (config.hidden, config.learning_rate, config.target_update) == ((512, 512), 3e-4, 0.005)
    assert (config.temperature, config.entropy_target) == ("auto", None)
    assert SAC(config, SPEC)._entropy_target() == -2.0
    assert configs.resolve("sac", "AdroitHandDoor-v1").learning_rate == 3e-5


@pytest.mark.parametrize("bad", [{"temperature": 0.0}, {"temperature": "warm"}, {"entropy_target": float("inf")}])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        configs.resolve("sac", "some-task", **bad)


def test_the_soft_value_is_near_its_expectation(parts):
    policy, critics, _ = parts
    algorithm = SAC(configs.resolve("sac", "some-task", hidden=()), SPEC)
    actor = algorithm.init(jax.random.key(0)).online._replace(policy=policy, critics=critics)
    rows = np.repeat(BATCH.observation[:1], 20_000, axis=0)
    action, log_pi = numpy_sample(policy, rows, jax.random.key(5))
    soft = numpy_minimum(critics, rows, action) - log_pi
    error = 4 * soft.std() / np.sqrt(32)
    assert algorithm.value(actor, jnp.asarray(BATCH.observation))[0] == pytest.approx(soft.mean(), abs=error)
