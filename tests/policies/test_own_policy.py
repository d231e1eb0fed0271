"""A policy class from outside: this file and one line of registry, and every implicit algorithm can train it."""

from __future__ import annotations

from typing import Any, Self

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicitq
from implicitq import configs
from implicitq.configs.fields import policies_told
from implicitq.networks import MLP
from implicitq.types import InputError, Spec

_SAMPLES = 4


class Chained(eqx.Module):
    """Two choices, the second of which depends on the first: ln pi(a) = ln pi(a_0) + ln pi(a_1 | a_0)."""

    first: jax.Array  # [B, N]
    second: jax.Array  # [B, N, N], by the first choice

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Needs the whole action."""
        action = action.astype(jnp.int32)
        chosen = jnp.take_along_axis(self.second, action[:, :1, None], axis=1)[:, 0]  # [B, N]
        return sum(
            jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, j : j + 1], axis=1)[:, 0]
            for j, logits in enumerate((self.first, chosen))
        )

    def sample(self, key: jax.Array) -> jax.Array:
        one, other = jax.random.split(key)
        first = jax.random.categorical(one, self.first)
        chosen = jnp.take_along_axis(self.second, first[:, None, None], axis=1)[:, 0]
        return jnp.stack([first, jax.random.categorical(other, chosen)], axis=1)

    def entropy(self, key: jax.Array) -> jax.Array:
        """Estimated, as if there were no closed form: the mean over dimensions, [B, 1]."""
        drawn = [-self.log_prob(self.sample(each)) for each in jax.random.split(key, _SAMPLES)]
        return sum(drawn)[:, None] / (_SAMPLES * 2)

    def deterministic(self) -> jax.Array:
        first = jnp.argmax(self.first, axis=1)
        return jnp.stack([first, jnp.argmax(self.second[jnp.arange(len(first)), first], axis=1)], axis=1)


class ChainedPolicy(eqx.Module):
    network: MLP
    size: int = eqx.field(static=True)

    def __call__(self, observation: jax.Array, temperature: jax.Array | float) -> Chained:
        outputs = self.network(observation)
        first, second = outputs[:, : self.size], outputs[:, self.size :]
        return Chained(first, second.reshape(-1, self.size, self.size))

    def train(self, observation: jax.Array, temperature: jax.Array | float) -> tuple[Chained, Self]:
        return self(observation, temperature), self

    @property
    def entropy_goal(self) -> float:
        return 0.3 * self.most_entropy

    @property
    def most_entropy(self) -> float:
        return float(np.log(self.size))

    @property
    def action_dtype(self) -> np.dtype:
        return np.dtype(np.uint8)

    def decode(self, action: jax.Array) -> jax.Array:
        return action

    def encode(self, coordinates: jax.Array) -> jax.Array:
        return coordinates


def build(config: configs.ImplicitConfig, spec: Spec, key: jax.Array) -> ChainedPolicy:
    assert spec.categories is not None
    size = spec.categories[0]
    return ChainedPolicy(MLP((spec.observation_size, *config.hidden, size + size**2), key, config.batch_norm), size)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(configs.POLICIES, "chained", configs.PolicyEntry(__name__, ("MultiDiscrete",)))


class Agree(gym.Env):
    """Pays 1 if both of two choices are the same: no product of two policies holds what is best here."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any):
        return np.ones(1, np.float32), float(action[0] == action[1]), True, False, {}


@pytest.mark.parametrize(
    ("algorithm", "values"),
    [("iq", {}), ("miq", {}), ("trust-pcl", {}), ("iq", {"temperature": "auto"})],
)
@pytest.mark.usefixtures("registered")
def test_it_trains_with_every_implicit_algorithm_and_finds_what_a_product_cannot_hold(algorithm, values, tmp_path):
    settings = {"hidden": (16,), "min_replay": 100, "batch_size": 32, "learning_rate": 1e-2, "eval_every": 10**6}
    temperature = {} if values else {"temperature": 0.2}
    agent = implicitq.make(algorithm, Agree, policy="chained", **settings, **temperature, **values).learn(1_000)
    seen = np.ones((4, 1), np.float32)
    q = agent.q_value(seen, np.array([[0, 0], [1, 1], [0, 1], [1, 0]]))
    assert q[:2].min() > q[2:].max() + 0.5
    assert np.mean(np.ptp(agent.predict(np.ones((500, 1), np.float32))[0], axis=1)) < 0.2
    agent.save(tmp_path / "own.policy")
    loaded = implicitq.load(tmp_path / "own.policy")
    np.testing.assert_array_equal(loaded.value(seen), agent.value(seen))
    agent.close()


@pytest.mark.usefixtures("registered")
def test_its_registry_says_which_actions_it_has():
    with pytest.raises(InputError, match=r"policy .chained. cannot act in a Box .*; it accepts MultiDiscrete"):
        implicitq.make("iq", "Pendulum-v1", policy="chained")
    assert policies_told().endswith("; MultiDiscrete only: chained.")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"exploration": 0.1}, "exploration must be 0 with policy 'chained', which has no bins, got 0.1"),
        ({"logits": "cosines"}, "logits must be 'bins' with policy 'chained', got 'cosines'"),
        ({"log_policy": "density"}, "log_policy must be 'probability' or 'centred' with policy 'chained', got 'dens"),
        ({"softmax": "scaled"}, "softmax must be 'plain' with policy 'chained', got 'scaled'"),
        ({"softmax": "steady"}, "softmax must be 'plain' with policy 'chained', got 'steady'"),
        ({"members": 2}, "members must be 1 with policy 'chained', whose members have no common policy, got 2"),
    ],
)
@pytest.mark.usefixtures("registered")
def test_what_its_registry_does_not_say_that_it_can_do_is_refused(setting, sentence):
    with pytest.raises(InputError, match=sentence):
        configs.resolve("iq", "Task-v0", policy="chained", **setting)
