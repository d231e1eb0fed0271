"""Ensembles against brute force over all actions, against NumPy, and on probes whose values are known."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicitq
import toys
from implicitq import train
from implicitq.algorithms import ensemble, iq
from implicitq.algorithms.base import Seen
from implicitq.algorithms.implicit import log_policy
from implicitq.configs import IQConfig, resolve
from implicitq.policies.multicategorical import Multicategorical
from implicitq.types import InputError, Spec, Transition
from toys import DISCOUNT, VALUES, Probe, State, one_hot

KEY = jax.random.key(0)
T = 0.3
BOX = Spec(observation_size=3, action_dimensions=2, categories=None)
UNEVEN = Spec(observation_size=3, action_dimensions=2, categories=(2, 3))
BOUNDED = {"calibration": 0.2, "bound_values": True, "log_policy": "centred", "temperature": "auto"}


def config(**values) -> IQConfig:
    made = resolve("iq", "Task-v0", **{"hidden": (8,), "bins": 3, "temperature": T, "members": 3, **values})
    assert isinstance(made, IQConfig)
    return made


def batch(spec: Spec, size: int = 6) -> Transition:
    generator = np.random.default_rng(0)
    return Transition(
        observation=generator.normal(size=(size, 3)).astype(np.float32),
        action=generator.integers(spec.categories or (3, 3), size=(size, 2)).astype(np.uint8),
        reward=generator.normal(size=size).astype(np.float32),
        discount=np.where(np.arange(size) == 2, 0.0, 0.9).astype(np.float32),
        next_observation=generator.normal(size=(size, 3)).astype(np.float32),
    )


def logsumexp(table: np.ndarray) -> np.ndarray:
    return np.log(np.exp(table).sum(-1))


def all_actions(spec: Spec) -> np.ndarray:
    """[all actions, D]."""
    return np.array(list(itertools.product(*(range(n) for n in spec.categories or (3, 3)))), np.uint8)


def tables(online: ensemble.Ensemble, spec: Spec, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ln pi_i of every joint action, and V_i: [M, B, actions], [M, B], in float64."""
    answers = [member(jnp.asarray(observation), T) for member in online.members]
    each = [
        [np.asarray(a.distribution.log_prob(np.tile(action, (len(observation), 1)))) for action in all_actions(spec)]
        for a in answers
    ]
    return np.array(each, np.float64).transpose(0, 2, 1), np.array([a.value for a in answers], np.float64)


@pytest.mark.parametrize("spec", [BOX, UNEVEN], ids=["Box", "MultiDiscrete"])
@pytest.mark.parametrize("members", [2, 3])
def test_the_mean_of_implicit_q_values_is_one_itself(members, spec):
    """Its policy and value are the softmax and the soft maximum of mean Q_i over all joint actions."""
    algorithm = iq.build(config(members=members), spec)
    online = algorithm.init(KEY).online
    observation = batch(spec).observation
    log_pi, values = tables(online, spec, observation)
    q = (T * log_pi + values[..., None]).mean(0)  # [B, actions]
    value = T * logsumexp(q / T)
    np.testing.assert_allclose(algorithm.value(online, observation), value, atol=1e-5)
    for number, action in enumerate(all_actions(spec)):
        coordinates = np.tile(np.asarray(online.policy.decode(action)), (len(observation), 1))
        found = algorithm.log_prob(online, observation, coordinates)
        np.testing.assert_allclose(found, (q[:, number] - value) / T, atol=1e-4)
        np.testing.assert_allclose(algorithm.q_value(online, observation, coordinates), q[:, number], atol=1e-5)
    common = np.exp((q - value[:, None]) / T)
    divergence = (common * ((q - value[:, None]) / T - log_pi)).sum(-1)  # KL(pi_bar || pi_i): [M, B]
    np.testing.assert_allclose(value, (values - T * divergence).mean(0), atol=1e-5)
    assert (value < values.mean(0)).all()  # untrained members disagree, and that costs


def test_members_that_agree_lose_nothing():
    logits = jax.random.normal(KEY, (5, 2, 4))
    one = Multicategorical(logits)
    same, log_z = one.pool([Multicategorical(logits + 7.0)])
    np.testing.assert_allclose(log_z, 0, atol=1e-5)
    np.testing.assert_allclose(same.probabilities(), one.probabilities(), rtol=1e-4)


@pytest.mark.parametrize("batch_norm", [False, True], ids=["targets", "batch_norm"])
@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("pessimism", [None, 1.7])
def test_every_member_learns_the_value_of_the_mean_from_its_own_part_of_a_batch(pessimism, alpha, batch_norm):
    settings = config(alpha=alpha, batch_norm=batch_norm, calibration=pessimism)
    algorithm = iq.build(settings, BOX)
    state, other = algorithm.init(KEY), algorithm.init(jax.random.key(1))
    data = batch(BOX)
    online = state.online
    if pessimism is not None:
        assert float(online.pessimism) == 1
        online = online._replace(pessimism=jnp.asarray(pessimism))
    found = ensemble.loss(online, other.target, data, settings, KEY)
    if batch_norm:
        seen = [member.train(data.observation, data.next_observation, T) for member in state.online.members]
        now, later = [answers[0] for answers in seen], [answers[1] for answers in seen]
        slow = now
        assert other.target is None
    else:
        now = [member(data.observation, T) for member in state.online.members]
        slow = [member(data.observation, T) for member in other.target.members]
        later = [member(data.next_observation, T) for member in other.target.members]
    values = np.mean([answer.value for answer in later], axis=0)
    next_value = values + (pessimism or 1) * (np.asarray(ensemble.pool(later, T)[1]) - values)
    bonus = alpha * T * np.asarray(ensemble.pool(slow, T)[0].log_prob(data.action))
    goal = data.reward + bonus + data.discount * np.asarray(next_value)
    q = np.array([T * np.asarray(a.distribution.log_prob(data.action)) + np.asarray(a.value) for a in now])
    owner = np.repeat(np.arange(3), 2)  # of the six rows
    assert float(found.error) == pytest.approx(np.mean((q[owner, np.arange(6)] - goal) ** 2), rel=1e-4)
    mean = np.array([answer.value for answer in now]).mean()
    assert float(found.metrics["disagreement"]) == pytest.approx(mean - float(found.metrics["value"]), abs=1e-5)
    assert float(found.metrics["disagreement"]) > 0


def test_no_gradient_flows_into_the_target_or_from_one_member_to_another():
    settings = config(members=2)
    state = iq.build(settings, BOX).init(KEY)
    error = lambda online, target: ensemble.loss(online, target, batch(BOX), settings, KEY).error  # noqa: E731
    slopes = jax.jit(jax.grad(error, argnums=(0, 1)))
    by_online, by_target = slopes(state.online, state.target)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(by_target))
    first, second = state.online.members
    moved = state.online._replace(members=(first, jax.tree.map(lambda leaf: leaf + 1, second)))
    by_moved, _ = slopes(moved, state.target)
    for one, two in zip(jax.tree.leaves(by_online.members[0]), jax.tree.leaves(by_moved.members[0]), strict=True):
        np.testing.assert_array_equal(one, two)
        assert np.asarray(one).any()


def test_an_ensemble_finds_the_soft_values_of_the_probe():
    agent = implicitq.make(
        "iq",
        partial(Probe, "Discrete"),
        members=2,
        discount=DISCOUNT,
        temperature=0.2,
        hidden=(32,),
        min_replay=100,
        batch_size=64,
        learning_rate=3e-3,
        target_update=0.05,
        eval_every=10**6,
    ).learn(2_500)
    bonus = 0.2 * np.log(2)
    states = (State.CONSTANT, State.UP, State.DOWN, State.SECOND)
    expected = {state: VALUES[state] + bonus for state in states} | {State.LOOP: (1 + bonus) / (1 - DISCOUNT)}
    np.testing.assert_allclose(agent.value(one_hot(*expected)), list(expected.values()), atol=0.1)
    assert agent.value(one_hot(State.CHOICE)) == pytest.approx(0.2 * np.log(1 + np.exp(5)), abs=0.1)
    assert np.exp(agent.log_prob(one_hot(State.CHOICE), 1)) == pytest.approx(1 / (1 + np.exp(-5)), abs=0.02)
    agent.close()


@pytest.mark.parametrize("members", [1, 2])
def test_centred_values_hold_rewards_alone_where_the_policy_has_the_wanted_entropy(members):
    """Wanted is the entropy of uniform actions, nearly; all actions of these states are worth the same."""
    agent = implicitq.make(
        "iq",
        partial(Probe, "Discrete", (State.CONSTANT, State.DOWN, State.LOOP)),
        members=members,
        log_policy="centred",
        entropy_target=0.999 * float(np.log(2)),
        discount=DISCOUNT,
        temperature=0.5,
        hidden=(32,),
        min_replay=100,
        batch_size=64,
        learning_rate=3e-3,
        target_update=0.05,
        eval_every=10**6,
    ).learn(1_600)
    states = (State.CONSTANT, State.DOWN, State.LOOP)
    np.testing.assert_allclose(agent.value(one_hot(*states)), [VALUES[state] for state in states], atol=0.1)
    agent.close()


def test_centring_adds_the_wanted_entropy_of_all_dimensions_to_ln_pi():
    settings = config(log_policy="centred", members=1)
    policy = iq.build(settings, BOX).init(KEY).online.policy
    uniform = Multicategorical(jnp.zeros((1, 2, 3)))
    found = log_policy(uniform, jnp.zeros((1, 2), jnp.uint8), policy, settings)
    assert float(found[0]) == pytest.approx(2 * (0.3 * np.log(3) - np.log(3)), rel=1e-5)


@pytest.mark.parametrize(
    ("overestimation", "expected"),
    [(0.5, 1.1), (-0.5, 0.9), (7.0, 1.2), (-7.0, 0.8)],
    ids=["too high", "too low", "far too high", "far too low"],
)
def test_pessimism_follows_overestimation(overestimation, expected):
    algorithm = iq.build(config(calibration=0.2), BOX)
    assert algorithm.calibrate is not None
    seen = Seen(overestimation, -1.0, 1.0)
    state = algorithm.calibrate(algorithm.init(KEY), seen)
    assert float(state.online.pessimism) == pytest.approx(expected)
    for _ in range(30):
        state = algorithm.calibrate(state, seen)
    assert float(state.online.pessimism) == pytest.approx(4.0 if overestimation > 0 else 0.0)


def test_the_step_of_pessimism_falls_with_updates():
    algorithm = iq.build(config(calibration=0.2, calibration_decay=100), BOX)
    assert algorithm.calibrate is not None
    for updates, expected in ((0, 1.2), (300, 1.1), (9_900, 1.02)):
        state = algorithm.calibrate(algorithm.init(KEY), Seen(7.0, -1.0, 1.0, updates))
        assert float(state.online.pessimism) == pytest.approx(expected)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_values_in_targets_stay_within_what_was_seen(batch_norm):
    """Bounded to zero, the next value is nothing: the loss is that of a batch whose transitions all terminate."""
    settings = config(**BOUNDED, batch_norm=batch_norm)
    algorithm, given = iq.build(settings, BOX), batch(BOX)
    assert algorithm.calibrate is not None
    fresh = algorithm.init(KEY)

    def error(state, batch):
        return float(ensemble.loss(state.online, state.target, batch, settings, KEY).error)

    terminal = given._replace(discount=np.zeros_like(given.discount))
    assert error(fresh, given) != pytest.approx(error(fresh, terminal))  # nothing was seen yet, nothing is bounded
    nowhere = algorithm.calibrate(fresh, Seen(0.0, 0.0, 0.0))
    assert error(nowhere, given) == pytest.approx(error(nowhere, terminal))
    wide = algorithm.calibrate(fresh, Seen(0.0, -1e3, 1e3))
    assert error(wide, given) == pytest.approx(error(fresh, given))


def test_bounds_of_values_grow_and_never_shrink():
    algorithm = iq.build(config(**BOUNDED), BOX)
    assert algorithm.calibrate is not None
    state = algorithm.init(KEY)
    for lowest, highest, expected in ((1.0, 2.0, (1, 2)), (-3.0, 1.0, (-3, 2)), (0.0, 5.0, (-3, 5))):
        state = algorithm.calibrate(state, Seen(0.0, lowest, highest))
        assert tuple(map(float, state.online.bounds)) == expected


def test_a_new_training_knows_nothing_of_the_returns_of_another_one():
    algorithm = iq.build(config(**BOUNDED), BOX)
    assert algorithm.calibrate is not None
    learnt = algorithm.calibrate(algorithm.init(KEY), Seen(3.0, -5.0, 5.0))
    fresh = algorithm.start(learnt.online)
    assert float(fresh.online.pessimism) == 1
    lowest, highest = fresh.online.bounds
    assert lowest > highest  # nothing is bounded


def test_updates_leave_pessimism_as_it_is():
    algorithm = iq.build(config(calibration=0.2, temperature="auto", alpha=0.0), BOX)
    state, metrics = algorithm.update(algorithm.init(KEY), batch(BOX), KEY)
    assert float(state.online.pessimism) == float(metrics["pessimism"]) == 1


def test_the_agent_is_told_how_far_its_values_were_off(small, monkeypatch):
    """By episodes of the time since the last one, in standard deviations of what followed, and not of the warm-up."""
    monkeypatch.setattr(train, "_CALIBRATE_EVERY", 20)
    found = []

    def compare(episodes, *_):
        found.append(sum(len(episode.rewards) for episode in episodes))
        return {"overestimation": 3.0, "return_spread": 6.0}

    monkeypatch.setattr(train.hindsight, "compare", compare)
    settings = {**small, "members": 2, "calibration": 0.1, "steps": 100, "min_replay": 40, "log_every": 1000}
    with implicitq.make("iq", toys.Toy, **settings) as agent:
        agent.learn()
        assert float(agent.trainer.learner.newest.arrays()["networks.pessimism"]) == pytest.approx(1 + 3 * 0.1 * 0.5)
    assert found[0] == 0  # before anything was learnt
    assert sum(found[1:4]) > 40


def test_how_often_is_logged_changes_nothing(small, monkeypatch):
    monkeypatch.setattr(train, "_CALIBRATE_EVERY", 20)
    arrays = []
    for log_every in (7, 50):
        settings = {**small, "members": 2, "calibration": 0.5, "log_every": log_every}
        with implicitq.make("iq", toys.Toy, **settings) as agent:
            agent.learn()
            arrays.append(agent.trainer.learner.newest.arrays())
    assert float(arrays[0]["networks.pessimism"]) != 1
    for name, array in arrays[0].items():
        np.testing.assert_array_equal(array, arrays[1][name])


def test_what_cannot_be_an_ensemble_is_refused():
    with pytest.raises(InputError, match="members must be a whole number from 1 to 100, got 0"):
        config(members=0)
    with pytest.raises(InputError, match="calibration must be None with one member, which has nobody to disagree with"):
        config(members=1, calibration=0.2)
    with pytest.raises(InputError, match="calibration must be a number above 0 and up to 10, or None, got 0"):
        config(calibration=0)
    with pytest.raises(InputError, match="calibration must be a number with bound_values, for finished episodes"):
        config(bound_values=True)
    with pytest.raises(InputError, match="log_policy must be 'centred' with bound_values"):
        config(bound_values=True, calibration=0.2)


def test_an_ensemble_is_saved_and_goes_on_exactly(small, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "_CALIBRATE_EVERY", 25)
    settings = {**small, "members": 2, "temperature": "auto", "log_policy": "centred", "batch_norm": True}
    settings |= {"calibration": 0.3, "bound_values": True}
    whole = implicitq.make("iq", toys.Toy, **settings).learn(out=tmp_path / "whole")
    stopped = implicitq.make("iq", toys.Toy, **settings)
    stopped.learn(out=tmp_path / "stopped", listeners=[lambda event: event.step < 70])
    stopped.close()
    resumed = implicitq.resume(tmp_path / "stopped", toys.Toy).learn()
    resumed.close()
    for name in ("metrics.csv", "evaluations.csv", "policy.safetensors", "checkpoints/000000120.safetensors"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    observations = np.random.default_rng(0).normal(size=(4, 3))
    loaded = implicitq.load(tmp_path / "whole", toys.Toy)
    np.testing.assert_array_equal(loaded.value(observations), whole.value(observations))
    np.testing.assert_array_equal(*(a.predict(observations, deterministic=True)[0] for a in (loaded, whole)))
    whole.close()
