"""M-DQN and DQN, and App. A.5: IQ's loss is M-DQN's on the implicit Q-value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicitq import configs, equations
from implicitq.algorithms import dqn, iq
from implicitq.algorithms.dqn import DQN
from implicitq.networks import MLP
from implicitq.types import Spec, Transition

SPEC = Spec(observation_size=3, action_dimensions=1, categories=(4,))


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
    first, second = (iq.build(iq_config, SPEC).init(jax.random.key(seed)) for seed in (0, 1))
    online, target, batch = first.online, second.target, random_batch()

    def implicit_q(networks, observation):  # Q = T ln pi + V of all actions: [B, N]
        log_pi = jax.nn.log_softmax(networks.policy(observation, 0.2).logits[:, 0])
        return equations.implicit_q(log_pi, networks.value(observation)[:, None], 0.2)

    def mdqn_on_implicit_q(networks):
        target_q, next_q = implicit_q(target, batch.observation), implicit_q(target, batch.next_observation)
        return dqn.munchausen_loss(implicit_q(networks, batch.observation), target_q, next_q, batch, mdqn_config)

    expected, gradient = jax.value_and_grad(mdqn_on_implicit_q)(online)
    found, found_gradient = jax.value_and_grad(lambda n: iq.loss(n, target, batch, iq_config, jax.random.key(0))[0])(
        online
    )
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


def test_mdqn_draws_from_the_softmax_and_dqn_is_greedy_but_for_epsilon():
    observation = jnp.ones((4_000, 3))
    for name in ("mdqn", "dqn"):
        algorithm = DQN(configs.resolve(name, "some-task", hidden=(), epsilon=0.1 if name == "dqn" else 0.0), SPEC)
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
