"""Learning where some actions are forbidden: the unmasked optimum is out of reach, and no value may hope for it."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import implicitq
from implicitq import configs
from implicitq.algorithms import dqn
from implicitq.policies import restricted
from implicitq.policies.gaussian import Gaussian
from implicitq.types import InputError, Transition
from probes import DISCOUNT, GREATEST, ROOM_VALUES, MaskedProbe, Room, room_mask

SETTINGS = {
    **{"hidden": (32,), "batch_size": 64, "learning_rate": 3e-3, "eval_episodes": 2, "eval_every": 2_500},
    **{"discount": DISCOUNT, "min_replay": 500, "warmup": "uniform"},
}
AUTO = {
    **{"temperature": 0.01, "n_step": 1, "n_step_target": "plain", "batch_size": 256, "learning_rate": 1e-3},
    "actor_average": 0.01,
}
ROOMS = np.eye(len(Room), dtype=np.float32)
WARM = {"pcl": {"temperature": 0.01}, "trust-pcl": {"temperature": 0.1}}  # their own would take long to tell 5 from 1
PATH = {"n_step": 3, "n_step_target": "path"}
CASES = [
    *[("iq", False, {}), ("miq", True, {}), ("pcl", False, {}), ("trust-pcl", True, {})],
    *[("miq-auto", False, AUTO), ("mdqn", False, {}), ("dqn", False, {})],
    *[("miq", False, PATH), ("miq", True, {"members": 3}), ("iq", False, {"log_policy": "centred"})],
]


@pytest.mark.parametrize(("algorithm", "several", "more"), CASES)
def test_values_hope_for_nothing_that_is_forbidden(algorithm, several, more):
    agent = implicitq.make(algorithm, partial(MaskedProbe, several), **{**SETTINGS, **WARM.get(algorithm, {}), **more})
    agent.learn(2_500)
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
    agent.learn(3_000, listeners=[lambda event: rows.append(getattr(event, "values", None))])
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
