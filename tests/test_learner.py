"""Compiled functions refuse arrays whose ranks differ, whatever the process has set: such shapes fit by accident."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicitq
import toys
from implicitq import algorithms

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
