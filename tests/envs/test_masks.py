"""Action masks on their way: from the environment through replay and policy, and back after a stop."""

from __future__ import annotations

import functools
from functools import partial
from pathlib import Path

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest

import implicitq
import toys
from implicitq import configs, machine
from implicitq.algorithms import dqn
from implicitq.commands.main import run
from implicitq.driver import drive
from implicitq.envs import masks
from implicitq.envs.adapter import Adapter
from implicitq.envs.making import EnvironmentMaker
from implicitq.machine import Memory
from implicitq.policies import restricted
from implicitq.policies.gaussian import Gaussian
from implicitq.sweeps import random_scores
from implicitq.train import Trainer
from implicitq.types import InputError, Transition
from toys import DISCOUNT, GREATEST, ROOM_VALUES, MaskedProbe, Room, room_mask

TAXI = "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3"  # the older is said to be out of date

# ------------------------------------------------------------------------------------------------- reading


def test_masks_of_several_choices_are_read_in_both_forms():
    expected = [[[True, False, False], [False, True, True]]]  # the first has only two categories
    flat = np.array([1, 0, 0, 1, 1], np.int8)
    for given in (flat, flat.astype(bool), flat.tolist(), (flat[:2], flat[2:]), [[1, 0], (False, True, True)]):
        assert masks.read(given, (2, 3), 1).tolist() == expected
    assert masks.read(np.stack([flat, flat]), (2, 3), 2).tolist() == expected * 2


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        ([1, 0, 1], "expected an action mask of 5 numbers, one for each choice, got 3"),
        ([1, 0, 0, 1, 2], r"an action mask has 1 where an action is allowed and 0 elsewhere, got \[0 1 2\]"),
        ([1, 0, 0, 0, 0], "must allow at least one action of action dimension 1, got one that allows none"),
        ([], "expected an action mask of 5 numbers, one for each choice, got 0"),
    ],
)
def test_masks_that_do_not_fit_are_refused(mask, sentence):
    with pytest.raises(InputError, match=sentence):
        masks.read(mask, (2, 3), 1)


class Gives(toys.Toy):
    """Gives one thing in reset and another in step, as action mask; nothing where it is None."""

    action_space = gym.spaces.Discrete(3)

    def __init__(self, in_reset, in_step) -> None:
        super().__init__(end_chance=0.0)
        self.in_reset, self.in_step = in_reset, in_step

    def reset(self, **arguments):
        observation, info = super().reset(**arguments)
        return observation, info if self.in_reset is None else {"action_mask": self.in_reset}

    def step(self, action):
        *answer, info = super().step(action)
        return *answer, info if self.in_step is None else {"action_mask": self.in_step}


@pytest.mark.parametrize(
    ("in_reset", "in_step", "sentence"),
    [
        ([0, 0, 0], [1, 1, 1], "the action mask of the environment in reset cannot be used: .* allow at least one"),
        ([1, 0, 1], [0, 0, 0], "the action mask of the environment in step cannot be used: .* one that allows none"),
        ([1, 0, 1], [1, 0], "in step cannot be used: expected an action mask of 3 numbers"),
        ([1, 0, 1], None, "the environment gave no action mask in step, but one in its first reset"),
        (None, [1, 0, 1], "the environment gave an action mask in step, but none in its first reset"),
    ],
)
def test_what_is_wrong_with_an_environments_masks_is_said(in_reset, in_step, sentence):
    adapter = Adapter(Gives(in_reset, in_step))

    def begin() -> None:
        adapter.reset(0)
        adapter.step(0)

    with pytest.raises(InputError, match=sentence):
        begin()


def test_environments_side_by_side_give_masks_or_none_of_them_does(small):
    sources = iter([lambda: Gives([1, 1, 0], [1, 1, 0]), lambda: Gives(None, None)])
    agent = implicitq.make("iq", lambda: next(sources)(), eval_env=lambda: Gives(None, None), num_envs=2, **small)
    with pytest.raises(InputError, match="all environments must give action masks, or none of them"):
        agent.learn()
    agent.close()


def test_masks_of_continuous_actions_are_no_masks():
    env = toys.Toy()
    env.action_masks = lambda: 1 / 0
    assert Adapter(env).reset(0)[1] is None


# ------------------------------------------------------------------------------------------------- training


def trainer_of(source, small, algorithm: str = "miq", **more) -> Trainer:
    return Trainer(configs.resolve(algorithm, "toy", **{**small, **more}), EnvironmentMaker(source))


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("source", [toys.MaskedToy, toys.MethodToy])
def test_every_mask_of_a_batch_is_that_of_its_observation(source, n_step, small):
    trainer = trainer_of(source, small, n_step=n_step, n_step_target="path", num_envs=2, warmup="uniform")
    drive(trainer, 120)  # a forbidden action would have stopped it
    batch = trainer.replay.sample(2_000)
    np.testing.assert_array_equal(batch.mask[:, 0], toys.allowed_by(batch.observation))
    goes_on = batch.discount > 0
    np.testing.assert_array_equal(batch.next_mask[goes_on, 0], toys.allowed_by(batch.next_observation[goes_on]))
    assert batch.next_mask[~goes_on, 0].all()  # not those of the environment, which forbid everything there
    assert batch.mask[np.arange(2_000), 0, batch.action[:, 0]].all()
    if n_step > 1:
        steps = batch.later_steps
        np.testing.assert_array_equal(steps.mask[..., 0, :], toys.allowed_by(steps.observation))
    if source is toys.MethodToy:
        np.testing.assert_array_equal(batch.mask[:, 1], np.tile([True, True, False, False, False], (2_000, 1)))
    trainer.close()


def test_a_mask_takes_a_bit_for_every_choice_and_without_masks_there_is_nothing(small):
    masked, plain = (trainer_of(source, small) for source in (toys.MethodToy, toys.MultiDiscreteToy))
    for trainer in (masked, plain):
        drive(trainer, 20)
        trainer.close()
    assert masked.replay.rows(np.array([0]), np.array([9]))["masks"].shape == (9, 2)  # 2 x 5 bits
    assert list(plain.replay.rows(np.array([0]), np.array([9]))) == ["observations", "actions", "rewards", "flags"]
    assert (plain.replay.sample(4).mask, plain.replay.sample(4).next_mask) == (None, None)
    assert "masks" not in plain.state()[0]


def test_masks_count_as_memory_of_the_replay(small, monkeypatch):
    """18 bytes per row are known beforehand, the one of the mask from the first reset on."""
    monkeypatch.setattr(machine, "available", lambda: Memory(machine=10**9, limit=18_500_000, free=10**6))
    trainer = trainer_of(toys.MaskedToy, small, replay_size=10**6, steps=10**6)
    with pytest.raises(InputError, match=r"replay_size 1,000,000 would take 19.0 MB of memory"):
        drive(trainer, 10)
    trainer.close()


@pytest.mark.parametrize("algorithm", ["miq", "mdqn"])
def test_a_run_with_masks_that_was_stopped_goes_on_byte_for_byte(algorithm, small, tmp_path, files_of):
    settings = {**small, "num_envs": 2, "n_step": 2}
    if algorithm == "mdqn":
        del settings["bins"]
    implicitq.make(algorithm, "toys:MaskedToy-v0", **settings).learn(out=tmp_path / "whole").close()
    implicitq.make(algorithm, "toys:MaskedToy-v0", **settings).learn(80, out=tmp_path / "parts").close()
    implicitq.resume(tmp_path / "parts", trust_env=True).learn().close()
    whole, parts = files_of(tmp_path / "whole"), files_of(tmp_path / "parts")
    for name in ("metrics.csv", "policy.safetensors", "checkpoints/000000120.safetensors"):
        assert parts[name] == whole[name], name
    implicitq.make(algorithm, "toys:MaskedToy-v0", **settings, vectorization="async").learn(out=tmp_path / "a").close()
    assert files_of(tmp_path / "a")["metrics.csv"] == whole["metrics.csv"]


@pytest.mark.parametrize(("first", "second"), [(toys.MaskedToy, "Unmasked"), ("Unmasked", toys.MaskedToy)])
def test_a_run_goes_on_with_masks_if_and_only_if_it_began_with_them(first, second, small, tmp_path):
    class Unmasked(toys.Toy):
        action_space = toys.MaskedToy.action_space

    first, second = (Unmasked if source == "Unmasked" else source for source in (first, second))
    implicitq.make("iq", first, **small).learn(40, out=tmp_path / "run").close()
    with pytest.raises(InputError, match=r"the run was trained with(out)? action masks, but its environment gives"):
        implicitq.resume(tmp_path / "run", second)
    implicitq.resume(tmp_path / "run", first).close()


@pytest.mark.filterwarnings("ignore:.*made anew")
def test_an_environment_that_is_made_anew_brings_its_own_mask(small, tmp_path):
    class Breaks(toys.Fails, toys.MaskedToy):
        pass

    source = functools.partial(Breaks, "raise", "step", 25, tmp_path / "failed")
    trainer = trainer_of(source, small, num_envs=2, on_env_error="restart")
    drive(trainer, 120)
    batch = trainer.replay.sample(2_000)
    assert trainer.envs.restarts == 1
    np.testing.assert_array_equal(batch.mask[:, 0], toys.allowed_by(batch.observation))
    trainer.close()


# ------------------------------------------------------------------------------------------------- the agent


def test_predictions_obey_the_masks_that_they_are_given(small):
    agent = implicitq.make("iq", toys.MethodToy, **small)
    observations = np.random.default_rng(0).normal(size=(300, 3))
    allowed = np.tile([0, 1, 0, 1, 0, 0, 1], (300, 1))
    for deterministic in (True, False):
        actions, _ = agent.predict(observations, deterministic=deterministic, action_masks=allowed)
        assert set(map(tuple, actions)) <= {(1, 1), (3, 1)}
        action, _ = agent.predict(observations[0], deterministic=deterministic, action_masks=allowed[0])
        assert tuple(action) in {(1, 1), (3, 1)}
    every = np.array([[i, 1] for i in range(5)])
    states = np.tile(observations[:1], (5, 1))
    log_pi = agent.log_prob(states, every, action_masks=allowed[:5])
    assert np.isneginf(log_pi[[0, 2, 4]]).all()
    assert np.exp(log_pi).sum() == pytest.approx(1)
    q = agent.q_value(states, every, action_masks=allowed[:5])
    np.testing.assert_allclose(q[[1, 3]], agent.value(states)[:2] + 0.01 * log_pi[[1, 3]], rtol=1e-5)
    with pytest.raises(InputError, match="must allow at least one action of action dimension 1"):
        agent.predict(observations[0], action_masks=[1, 1, 1, 1, 1, 0, 0])
    with pytest.raises(InputError, match="expected an action mask of 300 times 7 numbers, one for each choice, got 7"):
        agent.predict(observations, action_masks=allowed[0])
    agent.close()
    agent = implicitq.make("iq", toys.Toy, **small)
    with pytest.raises(InputError, match="action_masks are for discrete actions, those of the policy are Box"):
        agent.predict(observations[0], action_masks=[1])
    agent.close()


def test_taxi_never_takes_an_action_that_its_mask_forbids(tmp_path, small_flags, capsys):
    flags = ["--env", TAXI, *small_flags, "--out", str(tmp_path / "run"), "--steps", "400", "--eval-every", "400"]
    assert run(["train", "miq", *flags]) == 0
    assert run(["evaluate", str(tmp_path / "run"), "--episodes", "2"]) == 0
    assert legal_share(tmp_path / "run") == 1


def legal_share(folder: Path) -> float:
    """Of the actions of a sampled policy that Taxi's mask allows."""
    agent, env = implicitq.load(folder), gym.make(TAXI)
    observation, info = env.reset(seed=0)
    legal = []
    for _ in range(60):
        action, _ = agent.predict(observation, action_masks=info["action_mask"])
        legal.append(info["action_mask"][action])
        observation, _, _, _, info = env.step(action)
    return float(np.mean(legal))


def test_random_scores_are_those_of_allowed_actions():
    assert random_scores.measure("toys:MaskedToy-v0", episodes=5)["episodes"] == 5  # a forbidden one would raise
    space = toys.MethodToy.action_space
    space.seed(0)
    drawn = {tuple(masks.sample(space, {}, lambda: [0, 1, 0, 1, 0, 1, 0])) for _ in range(50)}
    assert drawn == {(1, 0), (3, 0)}
    grid = gym.spaces.MultiDiscrete([[2, 2], [2, 2]])
    assert masks.sample(grid, {"action_mask": [0, 1] * 4}, None).tolist() == [[1, 1], [1, 1]]


SETTINGS = {
    **{"hidden": (32,), "batch_size": 64, "learning_rate": 3e-3, "eval_episodes": 2, "eval_every": 2_500},
    **{"discount": DISCOUNT, "min_replay": 500, "warmup": "uniform", "target_update": 0.05},
}
AUTO = {
    **{"temperature": 0.01, "n_step": 1, "n_step_target": "plain", "batch_size": 256, "learning_rate": 1e-3},
    "actor_average": 0.01,
}
ROOMS = np.eye(len(Room), dtype=np.float32)
WARM = {"trust-pcl": {"temperature": 0.1}}  # its own would take long to tell 5 from 1
PATH = {"n_step": 3, "n_step_target": "path"}
CASES = [
    *[("miq", True, {}), ("trust-pcl", True, {})],
    *[("miq-auto", False, AUTO), ("mdqn", False, {}), ("dqn", False, {})],
    *[("miq", False, PATH), ("miq", True, {"members": 3}), ("iq", False, {"log_policy": "centred"})],
]


@pytest.mark.parametrize(("algorithm", "several", "more"), CASES)
def test_values_hope_for_nothing_that_is_forbidden(algorithm, several, more):
    agent = implicitq.make(algorithm, partial(MaskedProbe, several), **{**SETTINGS, **WARM.get(algorithm, {}), **more})
    agent.learn(2_500 if algorithm == "miq-auto" else 1_700)
    allowed = np.stack([room_mask(room, several) for room in Room])
    found = agent.value(ROOMS, action_masks=allowed)
    np.testing.assert_allclose(found, [ROOM_VALUES[room] for room in Room], atol=0.2)
    actions, _ = agent.predict(ROOMS, deterministic=True, action_masks=allowed)
    first = actions.reshape(len(Room), -1)[:, 0]
    assert first[[Room.OPEN, Room.DOOR, Room.ROUND]].tolist() == [GREATEST, 1, 1]
    agent.close()


def test_a_learnt_temperature_holds_its_share_of_what_is_allowed():
    settings = {**SETTINGS, "temperature": "auto", "softmax": "scaled", "alpha": 0.0, "temperature_learning_rate": 0.01}
    rows = []
    agent = implicitq.make("iq", MaskedProbe, **settings, log_every=500)
    agent.learn(2_000, listeners=[lambda event: rows.append(getattr(event, "values", None))])
    agent.close()
    last = [row for row in rows if row][-1]
    # A quarter of the episodes begin in each room, ROUND lasts four steps and HALL two: one state in eight is OPEN.
    expected = 0.3 * (np.log(3) / 8 + np.log(2) * 7 / 8)
    assert last["entropy_per_dimension"] == pytest.approx(expected, abs=0.05)
    assert last["temperature"] < 5


def test_the_loss_of_dqn_with_masks_by_hand():
    config = configs.resolve("mdqn", "none", temperature=0.5, alpha=0.9, munchausen_clip=None)
    q, target_q, next_q = (jnp.array([row]) for row in ([1.0, 2.0, 9.0], [0.5, 1.0, 9.0], [9.0, 3.0, 1.0]))
    mask, next_mask = jnp.array([[[True, True, False]]]), jnp.array([[[False, True, True]]])
    one = jnp.ones(1)
    batch = Transition(one, jnp.array([[1]]), one * 0.3, one * 0.7, one, mask=mask, next_mask=next_mask)
    log_pi = 1.0 - 0.5 * np.log(np.exp(0.5 / 0.5) + np.exp(1.0 / 0.5))  # T ln pi over the first two
    value = 0.5 * np.log(np.exp(3.0 / 0.5) + np.exp(1.0 / 0.5))  # over the last two
    expected = (0.3 + 0.9 * log_pi + 0.7 * value - 2.0) ** 2
    assert dqn.munchausen_loss(q, target_q, next_q, batch, config) == pytest.approx(expected, rel=1e-5)


def test_a_class_of_policies_that_knows_no_masks_says_so():
    normal = Gaussian(jnp.zeros((1, 1)), jnp.ones((1, 1)))
    with pytest.raises(InputError, match="gives action masks, but policies that are Gaussian know none"):
        restricted(normal, jnp.ones((1, 1, 2), bool))
