"""PCL and Trust-PCL: the residual loss, its gradient, and consistency over whole paths."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicitq import configs
from implicitq.algorithms import implicit, iq, pcl
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
