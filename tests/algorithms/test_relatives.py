"""The relatives of IQ. PCL and Trust-PCL: residuals over paths; M-DQN and DQN, with App. A.5; SAC's losses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicitq import configs, equations
from implicitq.algorithms import dqn, implicit, iq, pcl
from implicitq.algorithms.dqn import DQN
from implicitq.algorithms.sac import SAC, critic_loss, policy_loss, temperature_loss
from implicitq.networks import MLP, TwinActionValue
from implicitq.policies.tanh_gaussian import TanhGaussianPolicy
from implicitq.types import LaterSteps, Spec, Transition

KEY = jax.random.key(0)  # of entropies without a closed form; these have one
STATES, ACTIONS, DISCOUNT = 3, 2, 0.8
SPEC = Spec(observation_size=STATES, action_dimensions=1, categories=(ACTIONS,))
NEXT = np.array([[1, 2], [2, 0], [0, 1]])  # state after (state, action)
REWARD = np.array([[1.0, -1.0], [0.5, 2.0], [0.0, -0.3]])


def config(algorithm="pcl", **more):
    return configs.resolve(algorithm, "some-task", hidden=(), discount=DISCOUNT, **more)


def tables(logits, value):
    """Networks that look up: without hidden layers and on one-hot observations they are tables."""

    def filled(network, table):
        return eqx.tree_at(lambda n: n.network.weights, network, (jnp.asarray(table, jnp.float32),))

    networks = pcl.build(config(), SPEC).init(jax.random.key(0)).online
    return implicit.Networks(filled(networks.policy, logits), filled(networks.value, np.asarray(value)[:, None]))


def soft_optimum(temperature, alpha):
    """Policy and value at the fixed point: Q = r + alpha T ln pi + gamma V, T ln pi = Q - V."""
    value, log_pi = np.zeros(STATES), np.zeros((STATES, ACTIONS))
    for _ in range(3_000):
        q = REWARD + alpha * temperature * log_pi + DISCOUNT * value[NEXT]
        value = temperature * np.log(np.sum(np.exp(q / temperature), axis=1))
        log_pi = (q - value[:, None]) / temperature
    return log_pi, value


def paths(steps):
    """Every start with every sequence of actions."""
    starts, *choices = np.meshgrid(np.arange(STATES), *[np.arange(ACTIONS)] * steps, indexing="ij")
    state, choices = starts.ravel(), [choice.ravel() for choice in choices]
    eye = np.eye(STATES, dtype=np.float32)
    observed, reward = [], 0.0
    for i, choice in enumerate(choices):
        observed.append(eye[state])
        reward = reward + DISCOUNT**i * REWARD[state, choice]
        state = NEXT[state, choice]
    weights = np.tile(DISCOUNT ** np.arange(1, steps), (len(state), 1)).astype(np.float32)
    discount = np.full(len(state), DISCOUNT**steps, np.float32)
    made = Transition(observed[0], choices[0][:, None], reward.astype(np.float32), discount, eye[state])
    if steps == 1:
        return made
    return made._replace(
        later_steps=LaterSteps(np.stack(observed[1:], 1), np.stack(choices[1:], 1)[..., None], weights)
    )


LOGITS = np.array([[0.3, -1.0], [0.0, 2.0], [-0.5, 0.5]])
OTHER_LOGITS = np.array([[0.0, 0.4], [1.0, -1.0], [0.2, 0.1]])
VALUE = np.array([0.5, -1.0, 2.0])


def log_softmax(logits):
    return logits - np.log(np.sum(np.exp(logits), axis=1, keepdims=True))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_loss_is_the_squared_residual_of_the_path(steps, compiled):
    settings = config("trust-pcl", temperature=0.4, n_step=steps, n_step_target="path")
    online, target = tables(LOGITS, VALUE), implicit.Targets(tables(OTHER_LOGITS, VALUE).policy, None)
    function = jax.jit(pcl.loss, static_argnums=3) if compiled else pcl.loss
    found, *_ = function(online, target, paths(steps), settings, KEY)

    log_pi, log_target = log_softmax(LOGITS), log_softmax(OTHER_LOGITS)
    residuals = []
    for index in np.ndindex(STATES, *[ACTIONS] * steps):
        start, *choices = index
        state, total = start, 0.0
        for i, a in enumerate(choices):
            regular = 0.9 * 0.4 * log_target[state, a] - 0.4 * log_pi[state, a]
            total += DISCOUNT**i * (REWARD[state, a] + regular)
            state = NEXT[state, a]
        residuals.append(total + DISCOUNT**steps * VALUE[state] - VALUE[start])
    assert found == pytest.approx(np.mean(np.square(residuals)), rel=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_at_the_fixed_point_every_path_is_consistent(alpha, steps):
    log_pi, value = soft_optimum(0.5, alpha)
    online = tables(log_pi, value)
    settings = {"temperature": 0.5, "alpha": alpha, "n_step": steps, "n_step_target": "path"}
    for module, target in ((pcl, implicit.Targets(online.policy, None)), (iq, implicit.Targets(*online[:2]))):
        found, *_ = module.loss(online, target, paths(steps), config(**settings), KEY)
        assert found < 1e-8, module.__name__


def test_plain_returns_are_not_consistent_for_any_actions():
    log_pi, value = soft_optimum(0.5, 0.0)
    online = tables(log_pi, value)
    batch = paths(3)._replace(later_steps=None)
    assert pcl.loss(online, implicit.Targets(None, None), batch, config(temperature=0.5), KEY)[0] > 0.1


def test_iq_and_pcl_have_one_value_and_two_gradients():
    online = tables(LOGITS, VALUE)
    batch, settings = paths(1), config(temperature=0.5)
    fixed_point = jax.value_and_grad(
        lambda n: iq.loss(n, implicit.Targets(None, online.value), batch, settings, KEY)[0]
    )
    residual = jax.value_and_grad(lambda n: pcl.loss(n, implicit.Targets(None, None), batch, settings, KEY)[0])
    (first, gradient), (second, residual_gradient) = fixed_point(online), residual(online)
    assert first == pytest.approx(float(second))

    error = np.zeros((STATES, ACTIONS))  # goal - Q, for every start and action
    for state, a in np.ndindex(STATES, ACTIONS):
        q = 0.5 * log_softmax(LOGITS)[state, a] + VALUE[state]
        error[state, a] = REWARD[state, a] + DISCOUNT * VALUE[NEXT[state, a]] - q
    by_fixed_point = -2 * error.sum(axis=1) / error.size
    arriving = np.array([error[state == NEXT].sum() for state in range(STATES)])
    np.testing.assert_allclose(gradient.value.network.weights[0][:, 0], by_fixed_point, rtol=1e-5)
    np.testing.assert_allclose(
        residual_gradient.value.network.weights[0][:, 0],
        by_fixed_point + 2 * DISCOUNT * arriving / error.size,
        rtol=1e-5,
    )
    np.testing.assert_allclose(gradient.policy.network.weights[0], residual_gradient.policy.network.weights[0])


@pytest.mark.parametrize(
    ("algorithm", "temperature", "alpha", "kept"),
    [("pcl", 1e-4, 0.0, (False, False)), ("trust-pcl", 1e-3, 0.9, (True, False)), ("iq", 0.01, 0.0, (False, True))],
)
def test_each_keeps_the_targets_of_its_paper(algorithm, temperature, alpha, kept):
    settings = configs.resolve(algorithm, "HalfCheetah-v5")
    assert (settings.temperature, settings.alpha) == (temperature, alpha)
    build = iq.build if algorithm == "iq" else pcl.build
    target = build(configs.resolve(algorithm, "some-task", hidden=(4,)), SPEC).init(jax.random.key(0)).target
    assert tuple(part is not None for part in target) == kept


# M-DQN and DQN, and App. A.5: IQ's loss is M-DQN's on the implicit Q-value.


DISCRETE = Spec(observation_size=3, action_dimensions=1, categories=(4,))


def random_batch(size=16):
    generator = np.random.default_rng(0)
    return Transition(
        observation=generator.normal(size=(size, 3)).astype(np.float32),
        action=generator.integers(0, 4, (size, 1)).astype(np.uint8),
        reward=generator.normal(size=size).astype(np.float32),
        discount=generator.choice([0.0, 0.99], size).astype(np.float32),
        next_observation=generator.normal(size=(size, 3)).astype(np.float32),
    )


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("softmax", ["plain", "scaled"])
@pytest.mark.parametrize("alpha", [0.3, 0.9])
def test_the_loss_of_iq_is_that_of_mdqn_on_the_implicit_q_value(alpha, softmax, clip):
    values = {"hidden": (8,), "temperature": 0.2, "alpha": alpha, "munchausen_clip": clip}
    iq_config = configs.resolve("iq", "some-task", softmax=softmax, **values)
    mdqn_config = configs.resolve("mdqn", "some-task", **values)
    first, second = (iq.build(iq_config, DISCRETE).init(jax.random.key(seed)) for seed in (0, 1))
    online, target, batch = first.online, second.target, random_batch()

    def implicit_q(networks, observation):  # Q = T ln pi + V of all actions: [B, N]
        log_pi = jax.nn.log_softmax(networks.policy(observation, 0.2).logits[:, 0])
        return equations.implicit_q(log_pi, networks.value(observation)[:, None], 0.2)

    def mdqn_on_implicit_q(networks):
        target_q, next_q = implicit_q(target, batch.observation), implicit_q(target, batch.next_observation)
        return dqn.munchausen_loss(implicit_q(networks, batch.observation), target_q, next_q, batch, mdqn_config)

    def ours(networks):
        return iq.loss(networks, target, batch, iq_config, jax.random.key(0)).error

    expected, gradient = jax.jit(jax.value_and_grad(mdqn_on_implicit_q))(online)
    found, found_gradient = jax.jit(jax.value_and_grad(ours))(online)
    assert found == pytest.approx(float(expected), rel=1e-5)
    leaves, found_leaves = jax.tree.leaves(gradient), jax.tree.leaves(found_gradient)
    assert max(float(jnp.abs(leaf).max()) for leaf in leaves) > 0.1
    for leaf, other in zip(leaves, found_leaves, strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "more"), [("mdqn", {}), ("mdqn", {"munchausen_clip": None}), ("dqn", {}), ("dqn", {"alpha": 0.5})]
)
def test_the_loss_by_hand(algorithm, more, compiled):
    config = configs.resolve(algorithm, "some-task", **more)
    online, target = (MLP((3, 4), jax.random.key(seed)) for seed in (0, 1))
    batch, rows = random_batch(), np.arange(16)
    function = jax.jit(dqn.loss, static_argnums=3) if compiled else dqn.loss
    found, _ = function(online, target, batch, config)

    q, target_q, next_q = (
        np.asarray(net(jnp.asarray(x)), float)
        for net, x in ((online, batch.observation), (target, batch.observation), (target, batch.next_observation))
    )
    action, temperature = batch.action[:, 0], config.temperature
    if temperature:
        value, next_value = (temperature * np.log(np.exp(x / temperature).sum(1)) for x in (target_q, next_q))
    else:
        value, next_value = target_q.max(1), next_q.max(1)
    bonus = target_q[rows, action] - value
    if config.munchausen_clip is not None:
        bonus = np.clip(bonus, -config.munchausen_clip, 0)
    goal = batch.reward + config.alpha * bonus + batch.discount * next_value
    assert found == pytest.approx(np.mean((goal - q[rows, action]) ** 2), rel=1e-4)


def test_the_log_policy_of_an_unlikely_action_is_finite():
    agent = DQN(configs.resolve("mdqn", "some-task", hidden=()), SPEC)
    actor = agent.actor(agent.init(KEY))
    actor = eqx.tree_at(lambda network: network.weights, actor, (jnp.array([[0.0, -4.0]] * STATES),))
    found = agent.log_prob(actor, jnp.eye(STATES)[:1], jnp.array([[1]]))
    np.testing.assert_allclose(found, [-4 / 0.03], rtol=1e-5)


def test_mdqn_draws_from_the_softmax_and_dqn_is_greedy_but_for_epsilon():
    observation = jnp.ones((4_000, 3))
    for name in ("mdqn", "dqn"):
        algorithm = DQN(configs.resolve(name, "some-task", hidden=(), epsilon=0.1 if name == "dqn" else 0.0), DISCRETE)
        actor = algorithm.actor(algorithm.init(jax.random.key(0)))
        stored, action = algorithm.sample(actor, observation, jax.random.key(1))
        assert stored.dtype == np.uint8
        q = np.asarray(actor(observation[:1])[0], float)
        policy = np.exp((q - q.max()) / 0.03) if name == "mdqn" else (q == q.max()).astype(float)
        policy = policy / policy.sum() if name == "mdqn" else 0.9 * policy + 0.1 / 4
        np.testing.assert_allclose(np.bincount(action[:, 0], minlength=4) / 4_000, policy, atol=0.03)
        for choice in range(4):
            coordinates = jnp.full((1, 1), choice)
            found = algorithm.log_prob(actor, observation[:1], coordinates)
            assert np.exp(found[0]) == pytest.approx(policy[choice], abs=1e-5)
        assert algorithm.deterministic(actor, observation[:1])[0, 0] == np.argmax(q)


def test_the_defaults_are_the_reference_values():
    config = configs.resolve("mdqn", "some-task")
    assert (config.alpha, config.temperature, config.munchausen_clip, config.epsilon) == (0.9, 0.03, 1.0, 0.0)
    config = configs.resolve("dqn", "some-task")
    assert (config.alpha, config.temperature, config.epsilon) == (0.0, 0.0, 0.1)


# SAC: its three losses against NumPy, and what its temperature does.


CONTINUOUS = Spec(observation_size=3, action_dimensions=2, categories=None)
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
    policy = TanhGaussianPolicy(CONTINUOUS, (), keys[0])
    return policy, TwinActionValue(CONTINUOUS, (), keys[1]), TwinActionValue(CONTINUOUS, (), keys[2])


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
    expected = np.mean(numpy_minimum(critics, BATCH.observation, action) - 0.3 * log_pi)
    assert (found, value) == pytest.approx((-expected, expected), rel=1e-5)
    assert entropy == pytest.approx(-np.mean(log_pi), rel=1e-5)


def test_the_temperature_rises_when_the_policy_is_less_random_than_wanted():
    slope = jax.grad(temperature_loss)
    assert slope(jnp.log(0.5), jnp.float32(-3.0), -2.0) == pytest.approx(0.5 * (-3.0 + 2.0))  # descent: it rises
    assert slope(jnp.log(0.5), jnp.float32(-1.0), -2.0) == pytest.approx(0.5 * (-1.0 + 2.0))  # it falls


@pytest.mark.parametrize(("setting", "moves"), [("auto", True), (0.2, False)])
def test_only_an_automatic_temperature_moves(setting, moves):
    algorithm = SAC(configs.resolve("sac", "some-task", hidden=(4,), temperature=setting), CONTINUOUS)
    state = algorithm.init(jax.random.key(0))
    after, metrics = algorithm.update(state, BATCH, jax.random.key(1))
    first = 1.0 if setting == "auto" else setting
    assert metrics["temperature"] == pytest.approx(first)
    assert (float(after.online.log_temperature) != float(state.online.log_temperature)) is moves


def test_the_defaults_are_the_papers():
    config = configs.resolve("sac", "HalfCheetah-v5")
    assert (config.hidden, config.learning_rate, config.target_update) == ((512, 512), 3e-4, 0.005)
    assert (config.temperature, config.entropy_target) == ("auto", None)
    assert SAC(config, CONTINUOUS)._entropy_target() == -2.0
    assert configs.resolve("sac", "AdroitHandDoor-v1").learning_rate == 3e-5


@pytest.mark.parametrize("bad", [{"temperature": 0.0}, {"temperature": "warm"}, {"entropy_target": float("inf")}])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        configs.resolve("sac", "some-task", **bad)


def test_the_soft_value_is_near_its_expectation(parts):
    policy, critics, _ = parts
    algorithm = SAC(configs.resolve("sac", "some-task", hidden=()), CONTINUOUS)
    actor = algorithm.init(jax.random.key(0)).online._replace(policy=policy, critics=critics)
    rows = np.repeat(BATCH.observation[:1], 20_000, axis=0)
    action, log_pi = numpy_sample(policy, rows, jax.random.key(5))
    soft = numpy_minimum(critics, rows, action) - log_pi
    error = 4 * soft.std() / np.sqrt(32)
    assert algorithm.value(actor, jnp.asarray(BATCH.observation))[0] == pytest.approx(soft.mean(), abs=error)
