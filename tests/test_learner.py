"""Compiled functions refuse arrays whose ranks differ, whatever the process has set: such shapes fit by accident."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicitq
import toys
from implicitq import algorithms, configs, machine
from implicitq.commands import main as cli
from implicitq.learner import Actor, Stored, load_actor
from implicitq.machine import Memory
from implicitq.packing import Packing
from implicitq.types import InputError, Spec

SETTINGS = {**toys.SMALL, "min_replay": 4, "batch_size": 3}  # as many rows as features: [B] - [B, O] would broadcast


class Careless:
    """An algorithm with one careless function: rewards or values [B] beside observations [B, O]."""

    def __init__(self, careful: Any, function: str) -> None:
        self._careful, self._function = careful, function

    def __getattr__(self, name: str) -> Any:
        return getattr(self, "_careless_" + name) if name == self._function else getattr(self._careful, name)

    def _careless_update(self, state, batch, key):
        state, metrics = self._careful.update(state, batch, key)
        return state, metrics | {"loss": jnp.mean(batch.reward - batch.observation)}

    def _careless_value(self, actor, observation):
        return jnp.mean(self._careful.value(actor, observation) - observation, axis=0)


@pytest.fixture
def anything_goes():
    """As in the process of a user."""
    with jax.numpy_rank_promotion("allow"):
        yield


def agent_of(monkeypatch, function: str) -> implicitq.Agent:
    build = algorithms.build
    monkeypatch.setattr(algorithms, "build", lambda config, spec: Careless(build(config, spec), function))
    return implicitq.make("iq", toys.Toy, **SETTINGS)


def test_an_update_that_promotes_ranks_is_refused(anything_goes, monkeypatch):
    def train() -> None:
        agent_of(monkeypatch, "update").learn(8)

    with pytest.raises(ValueError, match="rank_promotion"):
        train()


def test_an_answer_that_promotes_ranks_is_refused(anything_goes, monkeypatch):
    agent = agent_of(monkeypatch, "value")
    with pytest.raises(ValueError, match="rank_promotion"):
        agent.value(np.zeros((4, 3)))
    agent.close()


def test_what_the_process_has_set_is_left_as_it_was(anything_goes):
    agent = implicitq.make("iq", toys.Toy, **SETTINGS).learn(8)
    agent.value(np.zeros((4, 3)))
    np.testing.assert_array_equal(jnp.zeros(3) + jnp.ones((2, 3)), np.ones((2, 3)))
    agent.close()


def test_packed_arrays_are_few_and_come_back_as_they_were():
    shapes = [(2, 3), (3,), (), (4, 2), (1,), (0,), (), ()]
    types = [np.float32] * 6 + [np.int32, np.uint32]
    arrays = [np.arange(np.prod(s)).reshape(s).astype(t) for s, t in zip(shapes, types, strict=True)]
    packing = Packing(arrays, ([3, 1], [0, 2, 4, 5, 6, 7], []))
    for numpy in (np, jnp):
        packed = packing.pack(arrays, numpy)
        assert [array.shape for array in packed] == [(4, 2), (3,), (2, 3), (2,), (), ()]
        for array, back in zip(arrays, packing.unpack(packed), strict=True):
            assert (back.shape, back.dtype) == (array.shape, array.dtype)
            np.testing.assert_array_equal(back, array)
    assert packing.slots == [[0, 1], [2, 3, 4, 5], []]


def test_a_state_of_many_arrays_crosses_into_an_update_as_few():
    with implicitq.make("iq-auto", toys.Toy, **toys.SMALL, actor_average=0.1) as agent:
        learner = agent._trainer.learner
        names = learner.arrays()
        matrices = [name for name, array in names.items() if array.ndim > 1]
        assert len(names) > 60
        assert len(learner.packed) <= len(matrices) + 6  # a vector for each part, and the counter of Adam


def test_checkpoints_with_moments_of_running_statistics_still_load():
    """Earlier versions had Adam's moments, all zero, for what no gradient reaches too."""
    with implicitq.make("miq-auto", toys.Toy, **SETTINGS) as agent:
        learner = agent._trainer.learner
        saved = learner.arrays()
        names = [name for name in saved if name.endswith("norms.0.scale") and ".mu." in name]
        assert names
        assert not [name for name in saved if name.endswith("norms.0.mean") and "optimizer" in name]
        old = {name.replace("scale", part): np.zeros(3, np.float32) for name in names for part in ("mean", "variance")}
        learner.load_arrays(saved | old)
        assert learner.arrays().keys() == saved.keys()
        with pytest.raises(implicitq.InputError, match="which is not known here"):
            learner.load_arrays(saved | {"algorithm.optimizer.0.norms.mean": np.zeros(3, np.float32)})


SMALL = {name: value for name, value in toys.SMALL.items() if name != "bins"} | {"min_replay": 20, "eval_every": 10_000}


def newest(agent: implicitq.Agent) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in agent._trainer.learner.newest.arrays().values()])


def shipped(agent: implicitq.Agent) -> np.ndarray:
    return np.concatenate([np.ravel(array) for array in agent._actor.arrays().values()])


def actor_of(arrays: dict[str, np.ndarray], spec: Spec, config: configs.Config) -> Actor:
    stored = {name: Stored(array.shape, str(array.dtype)) for name, array in arrays.items()}
    return load_actor(algorithms.build(config, spec), spec, config, stored, lambda: arrays)


def test_it_is_the_plain_mean_at_first_and_an_exponential_one_later():
    agent = implicitq.make("iq", toys.Toy(), seed=0, actor_average=0.25, **SMALL)
    agent.learn(19)
    weights = []
    expected = np.zeros(0)
    for count in range(1, 9):
        agent.learn(1)
        weights.append(newest(agent))
        expected = np.mean(weights, axis=0) if count <= 4 else 0.75 * expected + 0.25 * weights[-1]
        np.testing.assert_allclose(shipped(agent), expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(expected, weights[-1], rtol=1e-3)


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [("miq-auto", toys.Toy), ("sac", toys.Toy), ("miq", toys.DiscreteToy), ("dqn", toys.DiscreteToy)],
)
def test_training_does_not_notice_it_and_every_answer_of_the_agent_uses_it(algorithm, env):
    plain = implicitq.make(algorithm, env(), seed=0, **SMALL, actor_average=None).learn(60)
    averaged = implicitq.make(algorithm, env(), seed=0, **SMALL, actor_average=0.05).learn(60)
    arrays = averaged._trainer.learner.arrays()
    for name, array in plain._trainer.learner.arrays().items():
        np.testing.assert_array_equal(arrays[name], array)
    observation = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    assert not np.array_equal(plain.value(observation), averaged.value(observation))
    spec = plain._trainer.spec
    plain._actor = actor_of(averaged._actor.arrays(), spec, plain.config)
    for deterministic in (False, True):
        actions, expected = (each.predict(observation, deterministic=deterministic)[0] for each in (averaged, plain))
        np.testing.assert_array_equal(actions, expected)
        for question in ("log_prob", "q_value"):
            answers = (getattr(each, question)(observation, actions) for each in (averaged, plain))
            np.testing.assert_array_equal(*answers)
    np.testing.assert_array_equal(averaged.value(observation), plain.value(observation))


def test_a_policy_file_holds_nothing_else(tmp_path):
    agent = implicitq.make("miq-auto", toys.Toy(), seed=0, **SMALL).learn(60)
    assert agent.config.actor_average == 1e-3
    agent.save(tmp_path / "a.policy")
    loaded = implicitq.load(tmp_path / "a.policy")
    np.testing.assert_array_equal(shipped(loaded), shipped(agent))
    assert shipped(agent).size == newest(agent).size
    assert not np.array_equal(newest(agent), shipped(agent))


def test_arrays_that_are_not_known_are_refused():
    agent = implicitq.make("iq", toys.Toy(), seed=0, **SMALL)
    spec, arrays = agent._trainer.spec, agent._actor.arrays() | {"average.x": np.zeros(1)}
    with pytest.raises(InputError, match=r"the saved state has 'average.x', which is not known here"):
        actor_of(arrays, spec, agent.config)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5])
def test_a_wrong_rate_is_refused(rate):
    with pytest.raises(InputError, match=r"actor_average must be a number in \(0, 1\] or None"):
        configs.resolve("iq", "Pendulum-v1", actor_average=rate)


def test_a_file_from_before_a_field_existed_means_the_fields_default():
    """Not what the algorithm's preset has by now: that run did not have it."""
    data = configs.to_json(configs.resolve("miq-auto", "Pendulum-v1"))
    assert data["actor_average"] == 1e-3
    del data["actor_average"]
    assert configs.from_json(data).actor_average is None


@pytest.fixture
def small_machine(monkeypatch):
    monkeypatch.setattr(machine, "available", lambda: Memory(machine=8 * 10**9, limit=10**9, free=3 * 10**8))


def test_a_replay_beyond_all_memory_is_refused_in_a_sentence(small_machine, capsys):
    assert cli.run(["train", "miq", "--env", "toys:Toy-v0", "--hidden", "8", "--replay-size", "10000000000000"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "replay_size 10,000,000,000,000 would take 190,000.0 GB of memory;" in told
    assert "1.0 GB can be had here, of which 0.3 GB are free" in told


def test_a_replay_counts_as_far_as_the_run_fills_it(small_machine, small):
    """Of 19 bytes per row, 1.9 GB are reserved: more than the container may have, but not than the machine has."""
    implicitq.make("miq", "toys:Toy-v0", **{**small, "replay_size": 10**8}).close()
    with pytest.raises(InputError, match=r"replay_size 100,000,000 would take 1.9 GB of memory; 1.0 GB can be had"):
        implicitq.make("miq", "toys:Toy-v0", **{**small, "replay_size": 10**8, "steps": 10**9})


def test_networks_beyond_all_memory_are_refused_in_a_sentence(small_machine, small):
    with pytest.raises(InputError, match=r"a network with hidden \(30000, 30000\) would take 10.8 GB of memory"):
        implicitq.make("miq", "toys:Toy-v0", **{**small, "hidden": (30_000, 30_000)})
    with pytest.raises(InputError, match=r"a network with hidden \(1000000000000000000,\) would take"):
        implicitq.make("sac", "toys:Toy-v0", hidden=(10**18,))


def test_the_limit_of_a_container_counts(tmp_path, monkeypatch):
    found = machine.available()
    assert found is not None
    assert 0 < found.free <= found.limit <= found.machine
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    kinds = dict.fromkeys(("", "memory"), (tmp_path, "memory.max", "memory.current"))
    monkeypatch.setattr(machine, "_KINDS", kinds)
    assert machine.available() == Memory(found.machine, 5_000_000, 2_000_000)
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.available().limit == found.machine


# Learning on a device of one's choice, tried with two virtual ones.


def test_a_learner_on_the_second_device_stays_there_and_learns_the_same():
    """Were anything left on the first device, the guard would refuse to copy it."""
    code = """
import jax, numpy as np, tempfile, pathlib
import implicitq, toys
first, second = jax.devices()
settings = {**toys.SMALL, "normalize_observations": True, "actor_average": 0.1}

def places(agent):
    return {device for array in agent._trainer.learner.packed for device in array.devices()}

with implicitq.make("miq", toys.Toy, **settings) as here:
    here.learn(60)
    assert places(here) == {first}
folder = pathlib.Path(tempfile.mkdtemp()) / "run"
with implicitq.make("miq", toys.Toy, device="cpu:1", **settings) as there:
    there.learn(20, out=folder)
    assert places(there) == {second}
with implicitq.resume(folder, toys.Toy, device="cpu:1") as there, jax.transfer_guard_device_to_device("disallow"):
    there.learn(40)
    assert places(there) == {second}
ours, theirs = (agent._trainer.learner.arrays() for agent in (here, there))
for name, array in ours.items():
    np.testing.assert_array_equal(array, theirs[name], err_msg=name)
loaded = implicitq.load(folder, device="cpu:1")
observation = np.ones((3,))
assert loaded._actor.value(observation[None].astype(np.float32)).devices() == {second}
np.testing.assert_array_equal(loaded.value(observation), here.value(observation))
"""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["cpu:7", "abacus", "cpu:", "cpu:first", ""])
def test_a_device_that_is_not_there_is_named_with_those_that_are(name):
    with pytest.raises(InputError, match=f"no device '{name}' here; JAX has cpu:0"):
        implicitq.make("iq", toys.Toy, device=name, **toys.SMALL)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors cannot be chosen here")
def test_compiled_functions_run_at_once_where_there_is_one_processor():
    """Were they handed to another thread, a long one would not be done when its call returns.

    Its argument is on the device already: a call waits elsewhere for one that is still being copied.
    """
    code = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import jax
from implicitq.machine import find_device
find_device(None)
given = jax.numpy.eye(256).block_until_ready()
long = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda _, y: y @ x, x)).lower(given).compile()
assert long(given).is_ready()
"""
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=True)
