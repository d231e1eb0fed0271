"""IQ with batch normalisation in place of target networks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicitq.algorithms.implicit import Targets
from implicitq.algorithms.iq import build, loss
from implicitq.configs import IQConfig, resolve
from implicitq.types import InputError, Spec, Transition

NO_TARGETS = Targets(None, None)
KEY = jax.random.key(0)  # of entropies without a closed form; these have one
SPEC = Spec(observation_size=3, action_dimensions=2, categories=None)
TEMPERATURE, ALPHA, BINS = 0.3, 0.7, 3


def config(**values) -> IQConfig:
    settings = {"hidden": (8,), "bins": BINS, "batch_norm": True, "temperature": TEMPERATURE, "alpha": ALPHA, **values}
    made = resolve("iq", "Task-v0", **settings)
    assert isinstance(made, IQConfig)
    return made


def batch(size: int = 6) -> Transition:
    generator = np.random.default_rng(0)
    return Transition(
        observation=generator.normal(3.0, 2.0, size=(size, 3)).astype(np.float32),
        action=generator.integers(BINS, size=(size, 2)).astype(np.uint8),
        reward=generator.normal(size=size).astype(np.float32),
        discount=np.where(np.arange(size) == 2, 0.0, 0.9).astype(np.float32),
        next_observation=generator.normal(2.0, 2.0, size=(size, 3)).astype(np.float32),
    )


def forward(network, rows: np.ndarray) -> np.ndarray:
    """A network with batch normalisation at its start (scale 1, shift 0), in NumPy."""
    for number, weight in enumerate(network.weights):
        rows = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-3)
        rows = rows @ np.asarray(weight)
        rows = np.maximum(rows, 0) if number < len(network.weights) - 1 else rows
    return rows


def test_the_loss_is_that_of_both_batches_normalised_together():
    online = build(config(), SPEC).init(jax.random.key(0)).online
    data = batch()
    error, metrics, _ = loss(online, NO_TARGETS, data, config(), KEY)

    values = forward(online.value.network, np.concatenate([data.observation, data.next_observation]))[:, 0]
    logits = forward(online.policy.network, data.observation).reshape(6, 2, BINS)
    log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    log_pi = np.take_along_axis(log_softmax, data.action[..., None].astype(int), -1)[..., 0].sum(-1)
    goal = data.reward + ALPHA * TEMPERATURE * log_pi + data.discount * values[6:]
    q = TEMPERATURE * log_pi + values[:6]
    assert float(error) == pytest.approx(np.mean((goal - q) ** 2), rel=1e-4)
    assert float(metrics["value"]) == pytest.approx(values[:6].mean(), rel=1e-3, abs=1e-5)


def test_no_gradient_flows_through_the_target():
    """Munchausen term and next value are numbers: alpha and the discount change the error, and nothing else."""
    algorithm = build(config(), SPEC)
    online = algorithm.init(jax.random.key(0)).online
    data = batch()

    def residual_gradient(alpha: float, discount: float):
        """d loss / d parameters = -2 mean(error * d q): with the same error, targets cannot matter."""
        values = forward(online.value.network, np.concatenate([data.observation, data.next_observation]))[:, 0]
        log_pi = np.asarray(
            online.policy.distribution(
                jnp.asarray(forward(online.policy.network, data.observation), jnp.float32), TEMPERATURE
            ).log_prob(data.action)
        )
        shifted = data._replace(
            reward=(1.0 - alpha * TEMPERATURE * log_pi - discount * values[6:]).astype(np.float32),
            discount=np.full(6, discount, np.float32),
        )
        return jax.grad(lambda networks: loss(networks, NO_TARGETS, shifted, config(alpha=alpha), KEY)[0])(online)

    one, other = residual_gradient(0.0, 0.0), residual_gradient(0.9, 0.99)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5)


def test_an_update_moves_the_running_statistics_and_keeps_no_targets():
    algorithm = build(config(temperature="auto", softmax="scaled"), SPEC)
    state = algorithm.init(jax.random.key(0))
    assert not jax.tree.leaves(state.target)
    data = batch()
    after, _ = algorithm.update(state, data, jax.random.key(1))
    both = np.concatenate([data.observation, data.next_observation])
    np.testing.assert_allclose(after.online.value.network.norms[0].mean, 0.01 * both.mean(0), rtol=1e-4)
    np.testing.assert_allclose(after.online.policy.network.norms[0].mean, 0.01 * data.observation.mean(0), rtol=1e-4)


def test_batch_normalisation_needs_returns_without_paths():
    with pytest.raises(InputError, match="n_step_target must be 'plain' or 'soft' with batch_norm, got 'path'"):
        config(n_step=3, n_step_target="path")


@pytest.mark.parametrize(("rate", "expected"), [(None, 1e-3), (5e-3, 5e-3)])
def test_the_temperature_can_have_a_learning_rate_of_its_own(rate, expected):
    """Adam's first step is its learning rate, whatever the gradient."""
    settings = config(
        temperature="auto", softmax="scaled", learning_rate=1e-3, temperature_learning_rate=rate, adam_b1=0.5
    )
    algorithm = build(settings, SPEC)
    state = algorithm.init(jax.random.key(0))
    after, _ = algorithm.update(state, batch(), jax.random.key(1))
    before = state.online
    assert abs(float(after.online.log_temperature - before.log_temperature)) == pytest.approx(expected, rel=1e-3)
    step = np.abs(after.online.value.network.weights[1] - before.value.network.weights[1])
    assert float(step.max()) == pytest.approx(1e-3, rel=1e-2)
