"""A temperature that holds the entropy of the policy, and KL and entropy weights set apart."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicitq
from implicitq import algorithms
from implicitq.algorithms.implicit import Networks, Targets, temperature_loss, weights_of
from implicitq.algorithms.iq import build, loss
from implicitq.configs import IQConfig, resolve
from implicitq.types import InputError, Spec, Transition, Visited

KEY = jax.random.key(0)  # of entropies without a closed form; these have one
SPEC = Spec(observation_size=3, action_dimensions=2, categories=None)


def config(**values) -> IQConfig:
    made = resolve("iq", "Task-v0", **{"hidden": (8,), "bins": 3, **values})
    assert isinstance(made, IQConfig)
    return made


def auto(**values) -> IQConfig:
    return config(temperature="auto", softmax="scaled", **values)


def batch(size=6) -> Transition:
    generator = np.random.default_rng(0)
    return Transition(
        observation=generator.normal(size=(size, 3)).astype(np.float32),
        action=generator.integers(3, size=(size, 2)).astype(np.uint8),
        reward=generator.normal(size=size).astype(np.float32),
        discount=np.full(size, 0.9, np.float32),
        next_observation=generator.normal(size=(size, 3)).astype(np.float32),
    )


class Bandit(gym.Env):
    """One step, paid by how near the action is to 0.3 in both dimensions."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any):
        return np.ones(1, np.float32), -5.0 * float(np.sum((action - 0.3) ** 2)), True, False, {}


@pytest.mark.parametrize(("policy", "target"), [("multicategorical", None), ("gaussian", None), ("gaussian", 0.3)])
def test_the_temperature_moves_until_the_policy_has_the_wanted_entropy(policy, target):
    agent = implicitq.make(
        "miq",
        Bandit,
        temperature="auto",
        softmax="scaled",
        policy=policy,
        entropy_target=target,
        alpha=0.5,
        hidden=(32,),
        learning_rate=5e-3,
        min_replay=100,
        batch_size=64,
        eval_every=10**6,
    ).learn(2_500)
    observation, actions = np.ones((2_000, 1), np.float32), agent.predict(np.ones((2_000, 1), np.float32))[0]
    if policy == "gaussian":  # the environment gets clipped samples; judge the density by those inside
        scale = actions[(np.abs(actions) < 1).all(axis=1)].std(axis=0)
        entropy = float(np.mean(np.log(scale * np.sqrt(2 * np.pi * np.e))))
    else:
        entropy = -float(agent.log_prob(observation, actions).mean()) / 2
    wanted = {"multicategorical": 0.3 * np.log(11), "gaussian": -1.0}[policy] if target is None else target
    assert entropy == pytest.approx(wanted, abs=0.15)
    agent.close()


def test_the_temperature_rises_exactly_where_the_entropy_is_below_its_target():
    slope = jax.grad(temperature_loss)(jnp.float32(-1.0), jnp.float32(0.5), 0.7)
    np.testing.assert_allclose(slope, -0.2, rtol=1e-6)  # descent raises ln T
    wanted = auto(entropy_target=1.098)  # a hair below ln 3, that of uniform actions
    state = build(wanted, SPEC).init(jax.random.key(0))
    after, metrics = build(wanted, SPEC).update(state, batch(), jax.random.key(1))
    assert after.online.log_temperature > state.online.log_temperature
    np.testing.assert_allclose(metrics["temperature"], 0.1, rtol=1e-6)  # where it started


@pytest.mark.parametrize("form", [{}, {"members": 2}, {"members": 2, "batch_norm": True}])
def test_the_entropy_is_held_where_the_policy_is_now(form):
    """One member or two: states in which the policy is more random than wanted lower T, whatever the batch has."""
    observations = np.random.default_rng(1).normal(size=(64, 3)).astype(np.float32)
    algorithm = build(auto(entropy_states="visited", **form), SPEC)
    state = algorithm.init(jax.random.key(0))
    online = state.online
    sharp = online._replace(log_temperature=jnp.log(jnp.float32(0.01)))  # scaled: sharper ten times
    entropies = np.mean(algorithm._distribution(sharp, observations, None).entropy(KEY), axis=-1)
    wanted = float(np.median(entropies))
    algorithm = build(auto(entropy_states="visited", entropy_target=wanted, initial_temperature=0.01, **form), SPEC)
    moved = {}
    for name, where in (("random", entropies > wanted), ("sure", entropies < wanted)):
        seen = batch()._replace(visited=Visited(observations[where]))
        after, metrics = algorithm.update(algorithm.init(jax.random.key(0)), seen, jax.random.key(1))
        moved[name] = float(after.online.log_temperature - np.log(0.01))
        np.testing.assert_allclose(metrics["visited_entropy"], entropies[where].mean(), rtol=1e-5)
    np.testing.assert_allclose([moved["random"], moved["sure"]], [-3e-4, 3e-4], rtol=1e-2)  # Adam's first step


def test_in_masked_states_the_wanted_entropy_is_that_of_the_visited_ones():
    spec = Spec(observation_size=3, action_dimensions=1, categories=(4,))
    algorithm = build(auto(entropy_states="visited"), spec)
    state = algorithm.init(jax.random.key(0))
    single = np.tile(np.array([True, False, False, False]), (5, 1, 1))  # no choice: no entropy, and none is wanted
    example = batch()._replace(action=np.zeros((6, 1), np.uint8), mask=np.ones((6, 1, 4), bool))
    after, _ = algorithm.update(state, example._replace(visited=Visited(np.zeros((5, 3), np.float32), single)), KEY)
    np.testing.assert_allclose(after.online.log_temperature, state.online.log_temperature, atol=1e-7)


def test_the_temperature_stops_at_its_bound_and_leaves_it_again():
    algorithm = build(auto(max_temperature=0.1001, learning_rate=1e-2, entropy_target=0.5), SPEC)
    state = algorithm.init(jax.random.key(0))
    sharp = state.online._replace(policy=jax.tree.map(lambda x: 100 * x, state.online.policy))
    up, _ = algorithm.update(state._replace(online=sharp), batch(), jax.random.key(1))
    np.testing.assert_allclose(np.exp(up.online.log_temperature), 0.1001, rtol=1e-6)
    even = jax.tree.map(jnp.zeros_like, state.online.policy)  # ln 3 nats: more than is wanted
    start = algorithm.init(jax.random.key(0))
    down, _ = algorithm.update(
        start._replace(online=Networks(even, up.online.value, up.online.log_temperature)), batch(), jax.random.key(1)
    )
    np.testing.assert_allclose(down.online.log_temperature, up.online.log_temperature - 1e-2, rtol=1e-4)


def test_the_temperature_never_vanishes_beside_the_errors_of_q():
    """Or nothing would be left to learn the policy from, once V has found its scale."""
    algorithm = build(auto(), SPEC)
    state = algorithm.init(jax.random.key(0))
    vanished = state.online._replace(log_temperature=jnp.float32(-60.0))
    after, metrics = algorithm.update(state._replace(online=vanished), batch(), jax.random.key(1))
    np.testing.assert_allclose(np.exp(after.online.log_temperature), 1e-4 * metrics["td_error"], rtol=1e-5)


def test_the_loss_is_that_of_the_same_temperature_fixed_and_has_no_gradient_by_it():
    learnt, fixed = auto(alpha=0.9, initial_temperature=0.3), config(alpha=0.9, temperature=0.3, softmax="scaled")
    state = build(learnt, SPEC).init(jax.random.key(0))
    plain = state.online._replace(log_temperature=None)
    value, gradient = jax.value_and_grad(lambda p: loss(p, state.target, batch(), learnt, KEY)[0])(state.online)
    np.testing.assert_allclose(value, loss(plain, state.target, batch(), fixed, KEY)[0], rtol=1e-6)
    assert gradient.log_temperature == 0


@pytest.mark.parametrize(
    ("given", "temperature", "alpha"),
    [
        ({"kl": 0.09, "entropy": 0.01}, 0.1, 0.9),
        ({"kl": 0.0, "entropy": 0.02}, 0.02, 0.0),
        ({"temperature": 0.1, "kl": 0.09}, 0.1, 0.9),
        ({"temperature": 0.1, "entropy": 0.01}, 0.1, 0.9),
    ],
)
def test_weights_set_apart_are_temperature_and_alpha_in_other_words(given, temperature, alpha):
    made = config(**given)
    assert made.weights == pytest.approx((temperature, alpha))
    assert made.has_kl == (alpha > 0)


@pytest.mark.parametrize(
    ("given", "log_temperature", "alpha"),
    [
        ({"alpha": 0.9}, 2.0, 0.9),
        ({"entropy": 0.5}, np.log(2.0), 0.75),  # the KL weight adapts
        ({"entropy": 0.5}, np.log(0.25), 0.0),  # no more than all of the temperature
        ({"kl": 0.5}, np.log(2.0), 0.25),  # the entropy weight adapts
        ({"kl": 0.5}, np.log(0.25), 1.0),
    ],
)
def test_with_auto_one_weight_can_stay_fixed_while_the_other_adapts(given, log_temperature, alpha):
    made = auto(**given)
    state = build(made, SPEC).init(jax.random.key(0))
    assert state.target.policy is not None
    weights = weights_of(jnp.float32(log_temperature), made)
    np.testing.assert_allclose(weights.alpha, alpha, rtol=1e-6)
    np.testing.assert_allclose(weights.temperature, np.exp(log_temperature), rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"temperature": "hot"}, "temperature must be a number or 'auto' or None, got 'hot'"),
        ({"temperature": 0.1, "kl": 0.2}, "kl must be at most the temperature, 0.1, got 0.2"),
        ({"kl": -1.0}, "kl must be a number of at least 0, or None, got -1.0"),
        ({"kl": 0.0, "entropy": 0.0}, "temperature must be a positive number or 'auto', got 0.0"),
        (
            {"temperature": None},
            "temperature must be a positive number or 'auto', unless both kl and entropy are given",
        ),
        (
            {"alpha": 0.5, "kl": 0.001},
            "alpha must be 0.1 beside the others, got temperature 0.01, alpha 0.5, kl 0.001; give two of them: "
            r"temperature = kl \+ entropy and alpha = kl / temperature",
        ),
        (
            {"temperature": 0.5, "kl": 0.1, "entropy": 0.1},
            "entropy must be 0.4 beside the others, got temperature 0.5, kl 0.1, entropy 0.1; give two of them: "
            r"temperature = kl \+ entropy and alpha = kl / temperature",
        ),
        (
            {"temperature": "auto", "softmax": "scaled", "alpha": 0.9, "kl": 0.1},
            "a learnt temperature needs one of alpha, kl and entropy, to adapt the rest; got alpha 0.9, kl 0.1",
        ),
        (
            {"temperature": "auto", "softmax": "scaled", "kl": 0.1, "entropy": 0.1},
            "a learnt temperature needs one of alpha, kl and entropy, to adapt the rest; got kl 0.1, entropy 0.1",
        ),
        (
            {"temperature": "auto", "softmax": "scaled", "initial_temperature": 0.0},
            "initial_temperature must be a positive number, got 0.0",
        ),
        (
            {"temperature": "auto", "softmax": "scaled", "max_temperature": 0.01},
            r"max_temperature must be at least initial_temperature \(0.1\), or None, got 0.01",
        ),
    ],
)
def test_weights_that_make_no_sense_are_refused_with_a_sentence(given, sentence):
    with pytest.raises(InputError, match=f"^{sentence}$"):
        config(**given)


@pytest.mark.parametrize(
    ("given", "most"),
    [({"entropy_target": 1.1}, "1.099"), ({"entropy_target": 0.7, "log_policy": "density"}, "0.693")],
)
def test_more_entropy_than_uniform_actions_have_is_refused(given, most):
    with pytest.raises(InputError, match=f"entropy_target must be below the entropy of uniform actions, {most} nats"):
        build(auto(**given), SPEC).init(jax.random.key(0))


def test_a_learnt_temperature_is_logged_saved_and_resumed(tmp_path):
    settings = {"steps": 120, "hidden": (8,), "min_replay": 20, "batch_size": 8, "temperature": "auto"}
    settings |= {"softmax": "scaled", "eval_every": 60, "eval_episodes": 1, "checkpoint_every": 60, "log_every": 20}
    whole = implicitq.make("miq", "Pendulum-v1", **settings).learn(out=tmp_path / "whole")
    implicitq.make("miq", "Pendulum-v1", **settings).learn(60, out=tmp_path / "parts").close()
    parts = implicitq.resume(tmp_path / "parts").learn()
    metrics = (tmp_path / "whole" / "metrics.csv").read_text()
    assert "temperature" in metrics.splitlines()[0].split(",")
    assert (tmp_path / "parts" / "metrics.csv").read_text() == metrics
    for name in ("policy.safetensors", "evaluations.csv"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    observation = np.ones((2, 3), np.float32)
    loaded = implicitq.load(tmp_path / "whole")
    np.testing.assert_array_equal(
        loaded.q_value(observation, np.zeros((2, 1))), whole.q_value(observation, np.zeros((2, 1)))
    )
    whole.close()
    parts.close()


@pytest.mark.parametrize("values", [{}, {"batch_norm": True}, {"log_policy": "density"}, {"entropy_target": 0.4}])
@pytest.mark.parametrize("algorithm", ["iq", "pcl"])
def test_soft_returns_pay_the_wanted_entropy_for_every_step_in_between(algorithm, values):
    """(1 - alpha) T H D sum gamma^i, as if it were reward; one-step returns have nothing in between."""
    if algorithm == "pcl" and "batch_norm" in values:
        pytest.skip("batch normalisation is for IQ")
    settings = {"hidden": (8,), "bins": 3, "temperature": "auto", "softmax": "scaled", "alpha": 0.25, "n_step": 3}
    soft, plain = (
        algorithms.build(resolve(algorithm, "Task-v0", **settings, **values, n_step_target=kind), SPEC)
        for kind in ("soft", "plain")
    )
    state = soft.init(jax.random.key(0))
    later = np.linspace(0.0, 1.8, 6).astype(np.float32)
    entropy = values.get("entropy_target", 0.3 * np.log(3) + (np.log(2 / 3) if "log_policy" in values else 0.0))
    paid = (0.75 * 0.1 * entropy * 2 * later).astype(np.float32)  # T starts at 0.1

    def error(made, data: Transition) -> float:
        return float(made.loss(state.online, state.target, data, made.config, KEY).error)

    first = batch()
    expected = error(plain, first._replace(reward=first.reward + paid))
    assert error(soft, first._replace(later_weight=later)) == pytest.approx(expected, rel=1e-5)
    assert error(soft, first) == pytest.approx(error(plain, first), rel=1e-6)


def test_soft_returns_need_a_wanted_entropy():
    with pytest.raises(
        InputError, match="n_step_target must be 'plain' or 'path' with a fixed temperature, got 'soft'"
    ):
        config(n_step=3, n_step_target="soft")


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("kept", ["bins", "cosines"])
def test_a_steady_q_stays_as_it_is_when_the_temperature_moves(members, kept):
    """And the policy becomes more random at once, as softmax(Q / T) does with a larger T."""
    chosen = config(temperature="auto", softmax="steady", logits=kept, members=members, entropy_target=1.0)
    algorithm = build(chosen, SPEC)
    state = algorithm.init(KEY)
    hotter = state.online._replace(log_temperature=state.online.log_temperature + 0.7)
    steady, _ = algorithm._steady(state.online, hotter, state.target)
    observation = batch().observation
    actions = jnp.array([[0, 0], [1, 2], [2, 1], [1, 1], [2, 2], [0, 1]])
    coordinates = steady.policy.decode(actions)
    gaps = []
    for actor in (state.online, steady):
        q = algorithm.q_value(actor, observation, coordinates)
        gaps.append(q - algorithm.q_value(actor, observation, jnp.zeros_like(coordinates)))
    np.testing.assert_allclose(*gaps, rtol=1e-4, atol=1e-5)
    entropies = [algorithm._distribution(actor, observation, None).entropy(KEY) for actor in (state.online, steady)]
    assert (entropies[1] > entropies[0]).all()


def test_the_steady_form_is_the_scaled_one_in_other_units():
    """softmax(F_0 T_0 / T): what a temperature does to a policy between two updates of its network."""
    algorithm = build(config(temperature="auto", softmax="steady"), SPEC)
    online = algorithm.init(KEY).online
    colder = online._replace(log_temperature=online.log_temperature - 1.0)
    steady, _ = algorithm._steady(online, colder, Targets(online.policy, online.value))
    before, after = (each.policy(batch().observation, 1.0).logits for each in (online, steady))
    np.testing.assert_allclose(after, np.e * before, rtol=1e-5)


def test_targets_are_rescaled_with_the_networks_they_follow():
    algorithm = build(config(temperature="auto", softmax="steady", alpha=0.5), SPEC)
    online = algorithm.init(KEY).online
    colder = online._replace(log_temperature=online.log_temperature - 1.0)
    steady, target = algorithm._steady(online, colder, Targets(online.policy, online.value))
    both = (each.policy(batch().observation, 1.0).logits for each in (steady, target))
    np.testing.assert_array_equal(*both)


def test_steady_updates_keep_to_the_entropy_and_plain_ones_move_q():
    """One update, whose gradient is the same in both forms, and a large step of ln T."""
    algorithm = {form: build(auto_form(form), SPEC) for form in ("plain", "steady")}
    state = algorithm["plain"].init(KEY)
    after = {form: each.update(state, batch(), KEY)[0].online for form, each in algorithm.items()}
    ratio = np.exp(state.online.log_temperature - after["plain"].log_temperature)
    assert abs(ratio - 1) > 0.2
    logits = {form: online.policy(batch().observation, 1.0).logits for form, online in after.items()}
    np.testing.assert_allclose(logits["steady"], ratio * logits["plain"], rtol=1e-5)


def auto_form(softmax: str) -> IQConfig:
    return config(temperature="auto", softmax=softmax, temperature_learning_rate=0.3)


def test_forms_that_a_policy_does_not_have_are_refused():
    with pytest.raises(InputError, match="softmax must be 'plain' or 'scaled' with policy 'gaussian', got 'steady'"):
        config(policy="gaussian", softmax="steady")
    with pytest.raises(InputError, match="logits must be 'bins' with policy 'flow', got 'cosines'"):
        config(policy="flow", logits="cosines")
    with pytest.raises(InputError, match="bins must be at most 1000 with logits 'cosines', of which"):
        config(bins=1_001, logits="cosines")
