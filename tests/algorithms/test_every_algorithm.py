"""What holds for every algorithm: known answers, exact resume, several environments, warm-up, the Python face."""

from __future__ import annotations

from functools import partial

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicitq
import toys
from implicitq import InputError, algorithms, configs
from implicitq.algorithms.base import adam
from implicitq.configs import ALGORITHMS
from implicitq.driver import drive
from implicitq.envs import spaces
from implicitq.envs.making import EnvironmentMaker
from implicitq.events import Measured
from implicitq.train import Trainer
from toys import BEST, DISCOUNT, RESIDUAL_HEADS, VALUES, DiscreteToy, MultiDiscreteToy, Probe, State, Toy, one_hot

SMALL = {"hidden": (32,), "min_replay": 100, "batch_size": 64, "learning_rate": 3e-3, "eval_episodes": 2}
TASK = {"Box": "Pendulum-v1", "Discrete": "CartPole-v1"}
RESIDUAL = ("pcl", "trust-pcl")


def kinds(algorithm: str) -> tuple[str, ...]:
    """Kinds of action spaces to try an algorithm on."""
    accepted = configs.resolve(algorithm, "none").accepted_actions
    return tuple(kind for kind in ("Box", "Discrete") if kind in accepted)


ONE_CASE_EACH = [(name, kinds(name)[0]) for name in ALGORITHMS]
OTHER_KINDS = [(name, kinds(name)[-1]) for name in ALGORITHMS]  # Discrete, where an algorithm is for both
PROBED = [*OTHER_KINDS[1::2], *ONE_CASE_EACH[::2]]
"""Every algorithm once, in turn on Box and on Discrete actions."""


def trained_on_probe(algorithm: str, probe: partial, callback=(), **more) -> implicitq.Agent:
    """After enough steps with the untrained policy to have seen every action: it is not exploration that is probed."""
    settings = {**SMALL, "discount": DISCOUNT, "min_replay": 1_000, "eval_every": 3_500, **more}
    steps = 2_500
    if algorithm != "sac":
        settings.setdefault("target_update", 0.05)  # slower targets would need more steps
    if algorithm in ("sac", "iq-auto"):
        settings["temperature"] = 0.01  # a learnt one would add its own entropy to the values
        steps = 3_500
    if algorithm == "iq-auto":
        settings["n_step"] = 1  # several steps would hold the actions of the warm-up
        settings |= {"batch_size": 512, "learning_rate": 1e-3}  # the statistics of smaller batches are too noisy for it
        settings["temperature"] = 0.003  # centred ln pi pays for more entropy than wanted, where all actions are alike
        settings["softmax"] = "scaled"  # so low a temperature needs plain logits of hundreds, a long way for its steps
        settings["actor_average"] = 0.01  # after 2,500 updates the preset's mean still has the start in it
    return implicitq.make(algorithm, probe, **settings).learn(steps, callback=callback)


def check_values(agent: implicitq.Agent, expected: dict[State, float]) -> None:
    """The targets of FORK are the only noisy ones, so its value is the only one that keeps moving."""
    found = agent.value(one_hot(*expected))
    wrong = {
        state.name: (float(value), answer)
        for value, (state, answer) in zip(found, expected.items(), strict=True)
        if abs(value - answer) > (0.4 if state is State.FORK else 0.15)
    }
    assert not wrong, f"(found, expected) by state: {wrong}"


@pytest.mark.parametrize(("algorithm", "kind"), PROBED)
def test_the_known_answers_of_the_probe_are_found(algorithm, kind):
    heard = []
    agent = trained_on_probe(algorithm, partial(Probe, kind), heard.append)
    rows = [event.values for event in heard if isinstance(event, Measured)]
    assert abs(rows[-1]["overestimation"]) < 0.15, "values that are right are what follows"
    assert rows[-1]["return_spread"] > 0.5
    biased = {State.HEADS: RESIDUAL_HEADS, State.TAILS: -RESIDUAL_HEADS} if algorithm in RESIDUAL else {}
    check_values(agent, VALUES | biased)
    action, _ = agent.predict(one_hot(State.CHOICE), deterministic=True)
    # A quadratic ln pi is fitted to rewards that are no quadratic function of the action.
    tolerance = 0.35 if "gaussian" in algorithm else 0.2
    assert np.ravel(action)[0] == pytest.approx(BEST[kind], abs=tolerance)
    agent.close()


@pytest.mark.parametrize("algorithm", ["trust-pcl", "miq"])
def test_path_consistency_finds_them_over_several_steps(algorithm):
    certain = tuple(state for state in State if state not in (State.FORK, State.HEADS, State.TAILS, State.SECOND))
    agent = trained_on_probe(algorithm, partial(Probe, "Discrete", certain), n_step=3, n_step_target="path")
    check_values(agent, {state: VALUES[state] for state in certain if state in VALUES})
    assert agent.predict(one_hot(State.CHOICE), deterministic=True)[0] == BEST["Discrete"]
    agent.close()


@pytest.mark.parametrize(("algorithm", "kind"), ONE_CASE_EACH)
def test_a_stopped_run_goes_on_bit_for_bit(algorithm, kind, tmp_path):
    more = {"steps": 160, "checkpoint_every": 40, "log_every": 40, "eval_every": 80, "num_envs": 2, "min_replay": 50}
    settings = {**SMALL, **more, "eval_episodes": 1, "n_step": 2}
    if not getattr(configs.resolve(algorithm, TASK[kind]), "batch_norm", True):
        settings["n_step_target"] = "path"
    whole = implicitq.make(algorithm, TASK[kind], **settings).learn(out=tmp_path / "whole")
    implicitq.make(algorithm, TASK[kind], **settings).learn(80, out=tmp_path / "parts").close()
    parts = implicitq.resume(tmp_path / "parts").learn()
    expected, found = whole._trainer.learner.arrays(), parts._trainer.learner.arrays()
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    for name in ("metrics.csv", "evaluations.csv"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    whole.close()
    parts.close()


@pytest.mark.parametrize(("algorithm", "kind"), ONE_CASE_EACH)
def test_the_python_face_answers_alike_before_and_after_a_file(algorithm, kind, tmp_path):
    agent = implicitq.make(algorithm, TASK[kind], **SMALL)
    observations = np.stack([agent.observation_space.sample() for _ in range(3)])
    actions, _ = agent.predict(observations)
    answers = agent.value(observations), agent.log_prob(observations, actions), agent.q_value(observations, actions)
    for answer in answers:
        assert answer.shape == (3,)
        assert answer.dtype == np.float32
        assert np.isfinite(answer).all()
    one = agent.q_value(observations[1], actions[1])
    assert one.shape == ()
    assert one == pytest.approx(answers[2][1], rel=1e-4, abs=1e-5)
    same = agent.value(np.stack([observations[0]] * 3))
    np.testing.assert_allclose(same, np.full(3, same[0]), rtol=1e-5)

    agent.save(tmp_path / "one.policy")
    loaded = implicitq.load(tmp_path / "one.policy")
    again = loaded.value(observations), loaded.log_prob(observations, actions), loaded.q_value(observations, actions)
    for answer, other in zip(answers, again, strict=True):
        np.testing.assert_array_equal(answer, other)
    agent.close()


@pytest.mark.parametrize(
    ("algorithm", "env", "sentence"),
    [
        ("sac", "CartPole-v1", "sac cannot act in a Discrete action space, which CartPole-v1 has; it accepts Box"),
        ("iq-gaussian", "CartPole-v1", "iq-gaussian cannot act in a Discrete action space"),
        ("mdqn", "Pendulum-v1", "mdqn cannot act in a Box action space, which Pendulum-v1 has; it accepts Discrete"),
    ],
)
def test_an_action_space_out_of_reach_is_refused_with_a_sentence(algorithm, env, sentence):
    with pytest.raises(implicitq.InputError, match=sentence):
        implicitq.make(algorithm, env)


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_several_choices_at_once_are_not_one_choice(algorithm):
    spec = spaces.spec_of(gym.spaces.Box(0, 1, (2,)), gym.spaces.MultiDiscrete([2, 3]))
    with pytest.raises(implicitq.InputError, match="cannot act in a MultiDiscrete action space"):
        algorithms.build(configs.resolve(algorithm, "some-task"), spec)


@pytest.mark.parametrize(("algorithm", "kind"), ONE_CASE_EACH)
def test_no_two_arrays_of_a_state_are_one(algorithm, kind):
    actions = gym.spaces.Box(-1, 1, (2,)) if kind == "Box" else gym.spaces.Discrete(3)
    spec = spaces.spec_of(gym.spaces.Box(0, 1, (2,)), actions)
    state = algorithms.build(configs.resolve(algorithm, "some-task", hidden=(4,)), spec).init(jax.random.key(0))
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(pointers)) == len(pointers)


@pytest.mark.parametrize("algorithm", ["iq", "sac", "dqn"])
def test_the_step_size_falls_with_the_root_of_the_updates(algorithm):
    env = "CartPole-v1" if algorithm == "dqn" else "Pendulum-v1"
    config = configs.resolve(algorithm, env, learning_rate=0.01, learning_rate_decay=4)
    for rate, first in ((None, 0.01), (0.1, 0.1)):
        optimizer = adam(config, rate)
        state = optimizer.init(jnp.zeros(()))
        steps = []
        for _ in range(13):  # of one constant gradient, where every step of Adam is as long as its rate
            step, state = optimizer.update(jnp.ones(()), state)
            steps.append(-float(step))
        np.testing.assert_allclose([steps[0], steps[4], steps[12]], [first, first / 2**0.5, first / 2], rtol=1e-4)


def test_a_decay_is_a_whole_number():
    with pytest.raises(InputError, match="learning_rate_decay must be a whole number from 1, or None, got 0"):
        configs.resolve("iq", "Pendulum-v1", learning_rate_decay=0)


# Who acts before the first update: the untrained policy, or uniform actions.


WARMUP = 600
CASES = [
    ("iq", Toy, [3, 3]),
    ("iq", DiscreteToy, [3]),
    ("iq", MultiDiscreteToy, [2, 4]),
    ("iq-gaussian", Toy, None),
    ("sac", Toy, None),
    ("dqn", DiscreteToy, [3]),
]


def stored_actions(algorithm: str, toy: type[Toy], steps: int, **values) -> np.ndarray:
    """The replay's actions [steps, D] in the order they were taken."""
    fields = vars(configs.resolve(algorithm, "toy"))
    small = {name: value for name, value in toys.SMALL.items() if name in fields}
    settings = {**small, "min_replay": WARMUP, "eval_every": 10_000, **values}
    trainer = Trainer(configs.resolve(algorithm, "toy", **settings), EnvironmentMaker(toy))
    taken = []
    add = trainer.replay.add

    def watched(actions: np.ndarray, *rest: np.ndarray) -> None:
        taken.append(np.array(actions, float))
        add(actions, *rest)

    trainer.replay.add = watched  # type: ignore[method-assign]
    drive(trainer, steps)
    return np.concatenate(taken)


@pytest.mark.parametrize(("algorithm", "toy", "categories"), CASES)
def test_a_uniform_warmup_takes_every_action_equally_often(algorithm, toy, categories):
    actions = stored_actions(algorithm, toy, WARMUP, warmup="uniform", num_envs=2)
    assert len(actions) == WARMUP
    for dimension, column in enumerate(actions.T):
        if categories is None:  # numbers in [-1, 1]: ten equal parts
            assert column.min() >= -1
            assert column.max() <= 1
            counts = np.histogram(column, bins=10, range=(-1, 1))[0]
        else:
            counts = np.bincount(column.astype(int), minlength=categories[dimension])
            assert len(counts) == categories[dimension]
        expected = WARMUP / len(counts)
        assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)  # five standard deviations


def test_the_policy_acts_in_a_policy_warmup_and_after_a_uniform_one():
    """A fixed, very sharp policy repeats itself; uniform actions do not."""
    sharp = {"temperature": 1e-6, "softmax": "scaled", "learning_rate": 1e-9, "min_replay": 50}
    by_policy = stored_actions("iq", DiscreteToy, 100, **sharp)
    uniform = stored_actions("iq", DiscreteToy, 100, warmup="uniform", **sharp)

    def most_common(actions: np.ndarray) -> float:
        return np.bincount(actions[:, 0].astype(int)).max() / len(actions)

    assert most_common(by_policy) > 0.6
    assert most_common(uniform[:50]) < 0.6
    assert most_common(uniform[50:]) > 0.6


def test_warmup_is_either_of_two():
    with pytest.raises(InputError, match="warmup must be"):
        configs.resolve("iq", "Pendulum-v1", warmup="random")
