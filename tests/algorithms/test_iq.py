"""Eq. 2 against numbers computed by hand, and against NumPy with its gradient; batch normalisation for targets."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicitq
from implicitq.algorithms.implicit import Networks, Targets
from implicitq.algorithms.iq import build, loss
from implicitq.configs import IQConfig, resolve
from implicitq.types import InputError, Spec, Transition
from toys import BEST, DISCOUNT, VALUES, Probe, State, one_hot

KEY = jax.random.key(0)  # of entropies without a closed form; these have one
CONTINUOUS = Spec(observation_size=3, action_dimensions=2, categories=None)
with_and_without_jit = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])


def config(**values) -> IQConfig:
    made = resolve("iq", "Task-v0", **{"hidden": (8,), "bins": 3, **values})
    assert isinstance(made, IQConfig)
    return made


def batch(seed=0, size=6) -> Transition:
    generator = np.random.default_rng(seed)
    return Transition(
        observation=generator.normal(size=(size, 3)).astype(np.float32),
        action=generator.integers(3, size=(size, 2)).astype(np.uint8),
        reward=generator.normal(size=size).astype(np.float32),
        discount=np.array([0.9, 0.9, 0.0, 0.9, 0.0, 0.9], np.float32),
        next_observation=generator.normal(size=(size, 3)).astype(np.float32),
    )


def constant_networks(logits, value) -> Networks:
    """One state feature, one action dimension with two bins, no hidden layer: outputs are the biases."""
    state = build(config(hidden=(), bins=2), Spec(1, 1, None)).init(jax.random.key(0))
    zeroed = jax.tree.map(jnp.zeros_like, state.online)
    return Networks(
        jax.tree_util.tree_map(lambda leaf: jnp.array(logits) if leaf.shape == (2,) else leaf, zeroed.policy),
        jax.tree_util.tree_map(lambda leaf: jnp.array([value]) if leaf.shape == (1,) else leaf, zeroed.value),
    )


ONE_STEP = Transition(*(np.array(x, t) for x, t in [
    ([[0.0]], np.float32), ([[1]], np.uint8), ([2.0], np.float32), ([0.9], np.float32), ([[0.0]], np.float32),
]))  # fmt: skip


@with_and_without_jit
def test_the_loss_of_iq_matches_hand_computed_numbers(compiled):
    online = constant_networks([0.0, float(np.log(3.0))], 1.0)  # pi(1) = 3/4
    target = Targets(None, constant_networks([0.0, 0.0], 5.0).value)
    computed = lambda: loss(online, target, ONE_STEP, config(temperature=0.5), KEY)[0]  # noqa: E731
    expected = (2 + 0.9 * 5 - 0.5 * np.log(3 / 4) - 1) ** 2
    np.testing.assert_allclose((jax.jit(computed) if compiled else computed)(), expected, rtol=1e-6)


@with_and_without_jit
def test_the_loss_of_m_iq_adds_the_log_policy_of_the_target(compiled):
    online = constant_networks([0.0, float(np.log(3.0))], 1.0)
    slow = constant_networks([float(np.log(4.0)), 0.0], 5.0)  # pi_target(1) = 1/5
    settings = config(temperature=0.5, alpha=0.9)
    computed = lambda: loss(online, Targets(*slow[:2]), ONE_STEP, settings, KEY)[0]  # noqa: E731
    expected = (2 + 0.9 * 0.5 * np.log(1 / 5) + 0.9 * 5 - 0.5 * np.log(3 / 4) - 1) ** 2
    np.testing.assert_allclose((jax.jit(computed) if compiled else computed)(), expected, rtol=1e-6)


def test_the_munchausen_clip_reaches_the_loss():
    online = constant_networks([0.0, 0.0], 0.0)
    slow = constant_networks([20.0, 0.0], 0.0)  # ln pi_target(1) is about -20
    settings = config(temperature=0.5, alpha=0.9, munchausen_clip=1.0)
    found = loss(online, Targets(*slow[:2]), ONE_STEP, settings, KEY)
    np.testing.assert_allclose(found.error, (2 - 0.9 - 0.5 * np.log(1 / 2)) ** 2, rtol=1e-5)


def forward(network, inputs):
    hidden = np.maximum(inputs @ network.weights[0] + network.biases[0], 0)
    return hidden, hidden @ network.weights[1] + network.biases[1]


def numpy_loss_and_output_gradients(online, target, data, settings):
    """Eq. 2 in float64, with the gradients of the two output biases derived by hand."""

    def log_pi(policy, observation):
        logits = forward(policy.network, observation)[1].reshape(len(observation), 2, 3)
        if settings.softmax == "scaled":
            logits = logits / settings.temperature
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    rows = np.arange(len(data.reward))
    pick = lambda table: sum(table[rows, j, data.action[:, j]] for j in range(2))  # noqa: E731
    table = log_pi(online.policy, data.observation)
    goal = data.reward + data.discount * forward(target.value.network, data.next_observation)[1][:, 0]
    if settings.alpha:
        goal = goal + settings.alpha * settings.temperature * pick(log_pi(target.policy, data.observation))
    error = settings.temperature * pick(table) + forward(online.value.network, data.observation)[1][:, 0] - goal
    one_hot = np.eye(3)[data.action]  # [B, D, N]
    scale = 1.0 if settings.softmax == "scaled" else settings.temperature
    policy_gradient = (2 * error[:, None, None] * scale * (one_hot - np.exp(table))).mean(0).reshape(-1)
    return np.mean(error**2), policy_gradient, np.mean(2 * error, keepdims=True)


@with_and_without_jit
@pytest.mark.parametrize("softmax", ["plain", "scaled"])
@pytest.mark.parametrize("alpha", [0.0, 0.9])
def test_loss_and_gradient_agree_with_an_independent_derivation(alpha, softmax, compiled):
    settings = config(alpha=alpha, temperature=0.3, softmax=softmax)
    first, second = (build(settings, CONTINUOUS).init(jax.random.key(seed)) for seed in (0, 1))
    function = jax.value_and_grad(lambda p: loss(p, second.target, batch(), settings, KEY)[0])
    value, gradient = (jax.jit(function) if compiled else function)(first.online)
    double = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (first.online, second.target))
    expected, by_logits, by_value = numpy_loss_and_output_gradients(*double, batch(), settings)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient.policy.network.biases[-1], by_logits, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient.value.network.biases[-1], by_value, rtol=1e-4, atol=1e-6)


def test_no_gradient_flows_into_the_target():
    settings = config(alpha=0.9)
    first, second = (build(settings, CONTINUOUS).init(jax.random.key(seed)) for seed in (0, 1))
    gradient = jax.grad(lambda t: loss(first.online, t, batch(), settings, KEY)[0])(second.target)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))


def test_with_alpha_zero_the_target_policy_is_neither_kept_nor_computed():
    state = build(config(), CONTINUOUS).init(jax.random.key(0))
    assert state.target.policy is None
    products = lambda alpha: str(  # noqa: E731
        jax.make_jaxpr(lambda s, b: build(config(alpha=alpha), CONTINUOUS).update(s, b, jax.random.key(0)))(
            build(config(alpha=alpha), CONTINUOUS).init(jax.random.key(0)), batch()
        )
    ).count("dot_general")
    assert products(0.9) - products(0.0) == 2  # the two layers of one more forward pass


def test_an_update_is_one_step_of_adam_and_then_one_of_polyak():
    settings = config(alpha=0.9, learning_rate=1e-2, target_update=0.25)
    algorithm = build(settings, CONTINUOUS)
    before = algorithm.init(jax.random.key(0))
    after, _ = algorithm.update(before, batch(), jax.random.key(1))
    gradient = jax.grad(lambda p: loss(p, before.target, batch(), settings, KEY)[0])(before.online)
    # The first step of Adam is the sign of the gradient times the learning rate.
    stepped = jax.tree.map(lambda p, g: p - 1e-2 * g / (jnp.abs(g) + 1e-8), before.online, gradient)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), after.online, stepped)
    moved = jax.tree.map(lambda t, p: 0.75 * t + 0.25 * p, Networks(*before.target), after.online)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), Networks(*after.target), moved)


def test_a_transition_that_terminated_ignores_the_next_observation():
    settings, spec = config(), CONTINUOUS
    state = build(settings, spec).init(jax.random.key(0))
    ended = batch()._replace(discount=np.zeros(6, np.float32))
    elsewhere = ended._replace(next_observation=ended.next_observation + 7)
    assert loss(*state[:2], ended, settings, KEY)[0] == loss(*state[:2], elsewhere, settings, KEY)[0]
    assert loss(*state[:2], batch(), settings, KEY)[0] != loss(*state[:2], batch()._replace(
        next_observation=ended.next_observation + 7), settings, KEY)[0]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "alpha", "kind"), [("iq", 0.0, "Box"), ("miq", 0.5, "Discrete")])
def test_iq_and_m_iq_find_the_soft_values_of_the_probe(algorithm, alpha, kind):
    entropy_weight = 0.2
    settings = {"hidden": (32,), "bins": 5, "min_replay": 100, "batch_size": 64, "learning_rate": 3e-3}
    agent = implicitq.make(
        algorithm,
        partial(Probe, kind),
        discount=DISCOUNT,
        temperature=entropy_weight / (1 - alpha),
        alpha=alpha,
        eval_every=10**6,
        **settings,
    ).learn(2_500)
    # Where all actions are worth the same, the policy is uniform and every step earns the full entropy.
    bonus = entropy_weight * np.log({"Box": 5, "Discrete": 2}[kind])
    ends = {state: VALUES[state] + bonus for state in (State.CONSTANT, State.UP, State.DOWN, State.SECOND)}
    expected = {
        **ends,
        State.FIRST: bonus + DISCOUNT * ends[State.SECOND],
        State.LOOP: (1 + bonus) / (1 - DISCOUNT),  # a time limit is no end
    }
    np.testing.assert_allclose(agent.value(one_hot(*expected)), list(expected.values()), atol=0.1)
    if kind == "Discrete":
        soft = entropy_weight * np.log(1 + np.exp(1 / entropy_weight))  # rewards 0 and 1
        assert agent.value(one_hot(State.CHOICE)) == pytest.approx(soft, abs=0.1)
        best = np.exp(agent.log_prob(one_hot(State.CHOICE), BEST["Discrete"]))
        assert best == pytest.approx(1 / (1 + np.exp(-1 / entropy_weight)), abs=0.02)
    agent.close()


# Batch normalisation in place of target networks.


NO_TARGETS = Targets(None, None)
TEMPERATURE, ALPHA, BINS = 0.3, 0.7, 3


def norm_config(**values) -> IQConfig:
    settings = {"hidden": (8,), "bins": BINS, "batch_norm": True, "temperature": TEMPERATURE, "alpha": ALPHA, **values}
    made = resolve("iq", "Task-v0", **settings)
    assert isinstance(made, IQConfig)
    return made


def shifted_batch(size: int = 6) -> Transition:
    generator = np.random.default_rng(0)
    return Transition(
        observation=generator.normal(3.0, 2.0, size=(size, 3)).astype(np.float32),
        action=generator.integers(BINS, size=(size, 2)).astype(np.uint8),
        reward=generator.normal(size=size).astype(np.float32),
        discount=np.where(np.arange(size) == 2, 0.0, 0.9).astype(np.float32),
        next_observation=generator.normal(2.0, 2.0, size=(size, 3)).astype(np.float32),
    )


def norm_forward(network, rows: np.ndarray) -> np.ndarray:
    """A network with batch normalisation at its start (scale 1, shift 0), in NumPy."""
    for number, weight in enumerate(network.weights):
        rows = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-3)
        rows = rows @ np.asarray(weight)
        rows = np.maximum(rows, 0) if number < len(network.weights) - 1 else rows
    return rows


def test_the_loss_is_that_of_both_batches_normalised_together():
    online = build(norm_config(), CONTINUOUS).init(jax.random.key(0)).online
    data = shifted_batch()
    error, metrics, _ = loss(online, NO_TARGETS, data, norm_config(), KEY)

    values = norm_forward(online.value.network, np.concatenate([data.observation, data.next_observation]))[:, 0]
    logits = norm_forward(online.policy.network, data.observation).reshape(6, 2, BINS)
    log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    log_pi = np.take_along_axis(log_softmax, data.action[..., None].astype(int), -1)[..., 0].sum(-1)
    goal = data.reward + ALPHA * TEMPERATURE * log_pi + data.discount * values[6:]
    q = TEMPERATURE * log_pi + values[:6]
    assert float(error) == pytest.approx(np.mean((goal - q) ** 2), rel=1e-4)
    assert float(metrics["value"]) == pytest.approx(values[:6].mean(), rel=1e-3, abs=1e-5)


def test_no_gradient_flows_through_the_target():
    """Munchausen term and next value are numbers: alpha and the discount change the error, and nothing else."""
    algorithm = build(norm_config(), CONTINUOUS)
    online = algorithm.init(jax.random.key(0)).online
    data = shifted_batch()

    def residual_gradient(alpha: float, discount: float):
        """d loss / d parameters = -2 mean(error * d q): with the same error, targets cannot matter."""
        values = norm_forward(online.value.network, np.concatenate([data.observation, data.next_observation]))[:, 0]
        log_pi = np.asarray(
            online.policy.distribution(
                jnp.asarray(norm_forward(online.policy.network, data.observation), jnp.float32), TEMPERATURE
            ).log_prob(data.action)
        )
        shifted = data._replace(
            reward=(1.0 - alpha * TEMPERATURE * log_pi - discount * values[6:]).astype(np.float32),
            discount=np.full(6, discount, np.float32),
        )
        return jax.grad(lambda networks: loss(networks, NO_TARGETS, shifted, norm_config(alpha=alpha), KEY)[0])(online)

    one, other = residual_gradient(0.0, 0.0), residual_gradient(0.9, 0.99)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5)


def test_an_update_moves_the_running_statistics_and_keeps_no_targets():
    algorithm = build(norm_config(temperature="auto", softmax="scaled"), CONTINUOUS)
    state = algorithm.init(jax.random.key(0))
    assert not jax.tree.leaves(state.target)
    data = shifted_batch()
    after, _ = algorithm.update(state, data, jax.random.key(1))
    both = np.concatenate([data.observation, data.next_observation])
    np.testing.assert_allclose(after.online.value.network.norms[0].mean, 0.01 * both.mean(0), rtol=1e-4)
    np.testing.assert_allclose(after.online.policy.network.norms[0].mean, 0.01 * data.observation.mean(0), rtol=1e-4)


def test_batch_normalisation_needs_returns_without_paths():
    with pytest.raises(InputError, match="n_step_target must be 'plain' or 'soft' with batch_norm, got 'path'"):
        norm_config(n_step=3, n_step_target="path")


@pytest.mark.parametrize(("rate", "expected"), [(None, 1e-3), (5e-3, 5e-3)])
def test_the_temperature_can_have_a_learning_rate_of_its_own(rate, expected):
    """Adam's first step is its learning rate, whatever the gradient."""
    settings = norm_config(
        temperature="auto", softmax="scaled", learning_rate=1e-3, temperature_learning_rate=rate, adam_b1=0.5
    )
    algorithm = build(settings, CONTINUOUS)
    state = algorithm.init(jax.random.key(0))
    after, _ = algorithm.update(state, shifted_batch(), jax.random.key(1))
    before = state.online
    assert abs(float(after.online.log_temperature - before.log_temperature)) == pytest.approx(expected, rel=1e-3)
    step = np.abs(after.online.value.network.weights[1] - before.value.network.weights[1])
    assert float(step.max()) == pytest.approx(1e-3, rel=1e-2)


def test_only_collected_actions_go_to_neighbouring_bins():
    """What an agent samples when asked, and its ln pi, are those of the policy."""
    sure, curious = (build(config(bins=11, exploration=share), CONTINUOUS) for share in (0.0, 0.5))
    actor = sure.init(KEY).online
    observation = np.zeros((2_000, 3), np.float32)
    np.testing.assert_array_equal(sure.explore(actor, observation, KEY)[0], sure.sample(actor, observation, KEY)[0])
    np.testing.assert_array_equal(curious.sample(actor, observation, KEY)[0], sure.sample(actor, observation, KEY)[0])
    pi = np.asarray(actor.policy(observation[:1], 1.0).probabilities())[0]  # [D, N]
    wider = 0.5 * pi
    wider[:, 1:] += 0.25 * pi[:, :-1]
    wider[:, :-1] += 0.25 * pi[:, 1:]
    wider[:, [0, -1]] += 0.25 * pi[:, [0, -1]]  # the bounds hold back what would go beyond
    stored, coordinates = curious.explore(actor, observation, KEY)
    found = np.array([np.bincount(column, minlength=11) for column in np.asarray(stored).T]) / len(observation)
    np.testing.assert_allclose(found, wider, atol=0.05)  # four standard errors
    np.testing.assert_array_equal(coordinates, actor.policy.decode(stored))


def test_exploration_is_a_share_and_needs_bins():
    with pytest.raises(InputError, match=r"exploration must be a number in \[0, 1\], got 1.5"):
        config(exploration=1.5)
    with pytest.raises(InputError, match=r"exploration must be 0 with policy 'gaussian', which has no bins, got 0\.3"):
        config(exploration=0.3, policy="gaussian")
