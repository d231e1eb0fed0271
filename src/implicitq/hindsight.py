"""Were the values right? V(s) of visited states against the return that followed, of episodes that have ended.

The return is the one that V stands for: discounted, with what the algorithm's value counts besides rewards
(`Algorithm.regularization`), and with V of the last observation where a time limit cut the episode.
Shapes: L steps of an episode, O observation features, D action dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from implicitq.replay import Episode
from implicitq.types import Array

METRICS = ("overestimation", "return_spread")
PLAUSIBLE = "plausible_value"  # metric: what no value should exceed by much

_MARGIN = 3.0  # values are averages of estimates, which may overshoot for a while
_UNTRAINED = 10.0  # networks that have learnt nothing give values below this
_NATS = 3.0  # of entropy or its opposite, per action dimension

_ROWS = 256  # per call, so that one size is compiled

Judge = Callable[..., tuple[Any, Any, Any]]
"""Observations [B, O], stored actions [B, D] and, where there are such, action masks [B, D, N] -> values and both kinds
of regularisation, three of [B]."""


def plausible_value(largest_reward: float, temperature: float, dimensions: int, discount: float) -> float:
    """The greatest return, up or down, that rewards seen so far and what is paid for entropy can explain."""
    return (largest_reward + _NATS * temperature * dimensions) / (1 - discount)


def is_implausible(value: Any, plausible: Any) -> Any:
    """Whether values have left all that rewards can explain; nan has not."""
    return np.abs(value) > _UNTRAINED + _MARGIN * plausible


def compare(episodes: Sequence[Episode], judge: Judge, discount: float, n_step: int) -> dict[str, float]:
    """Mean of V(s) - return over all visited states, and the standard deviation of these returns; nan without any."""
    if not episodes:
        return dict.fromkeys(METRICS, np.nan)
    value, first, later = _judged(episodes, judge)
    too_high, returns, begin = [], [], 0
    for episode in episodes:
        steps = slice(begin, begin + len(episode.rewards))
        end = 0.0 if episode.terminated else value[steps.stop]
        returns.append(soft_returns(episode.rewards, first[steps], later[steps], end, discount, n_step))
        too_high.append(value[steps] - returns[-1])
        begin = steps.stop + 1
    found = float(np.mean(np.concatenate(too_high))), float(np.std(np.concatenate(returns)))
    return dict(zip(METRICS, found, strict=True))


def soft_returns(rewards: Array, first: Array, later: Array, end: float, discount: float, n_step: int = 1) -> Array:
    """The return that followed every step of an episode, as n-step targets add it up: [L].

    G_t = first_t + sum_{0 < i < n} gamma^i later_{t+i} + sum_{i < n} gamma^i r_{t+i} + gamma^n G_{t+n}, where G is
    `end` at the end of the episode. It is that of all steps with `later`, plus what every n-th has instead.
    """
    total = np.zeros(len(rewards))
    instead = np.zeros(len(rewards) + n_step)
    following = end
    for t in reversed(range(len(rewards))):
        following = rewards[t] + later[t] + discount * following
        instead[t] = first[t] - later[t] + discount**n_step * instead[t + n_step]
        total[t] = following + instead[t]
    return total


def _judged(episodes: Sequence[Episode], judge: Judge) -> tuple[Array, Array, Array]:
    """Values and regularisation of all rows, one episode after the other."""
    inputs = [np.concatenate([episode.observations for episode in episodes])]
    inputs.append(np.concatenate([episode.actions for episode in episodes]))
    masks = [episode.masks for episode in episodes if episode.masks is not None]
    if masks:
        inputs.append(np.concatenate(masks))
    count, chunks = len(inputs[0]), []
    for begin in range(0, count, _ROWS):
        rows = np.arange(begin, begin + _ROWS) % count  # the last call is filled up with any rows
        chunks.append([np.asarray(part, np.float64) for part in judge(*(column[rows] for column in inputs))])
    value, first, later = (np.concatenate(part)[:count] for part in zip(*chunks, strict=True))
    return value, first, later
