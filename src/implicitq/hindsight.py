"""Were the values right? V(s) of visited states against the returns that followed, in finished episodes.

The return is the one that V estimates: discounted, with the regularisation of the algorithm
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
_STRIDE = 8  # of the states whose values are asked: SAC averages over many actions in each of them

Ask = Callable[..., Any]
"""An actor's answer to observations [B, O], stored actions [B, D] or none, and action masks [B, D, N] or none."""


def plausible_value(largest_reward: float, temperature: float, dimensions: int, discount: float) -> float:
    """The largest absolute return that rewards seen so far and entropy terms can explain."""
    return (largest_reward + _NATS * temperature * dimensions) / (1 - discount)


def is_implausible(value: Any, plausible: Any) -> Any:
    """Whether values are beyond what rewards can explain; False for nan."""
    return np.abs(value) > _UNTRAINED + _MARGIN * plausible


def compare(
    episodes: Sequence[Episode], value: Ask, regularization: Ask, discount: float, n_step: int
) -> dict[str, float]:
    """Mean of V(s) - return over visited states, and the standard deviation of these returns; nan without any."""
    if not episodes:
        return dict.fromkeys(METRICS, np.nan)
    observations = np.concatenate([episode.observations for episode in episodes])
    actions = np.concatenate([episode.actions for episode in episodes])
    given = [episode.masks for episode in episodes if episode.masks is not None]
    masks = [np.concatenate(given)] if given else []
    lengths = np.array([len(episode.rewards) for episode in episodes])
    begins = np.cumsum(lengths + 1) - lengths - 1  # rows of first observations
    chosen = [np.arange(begin, begin + length, _STRIDE) for begin, length in zip(begins, lengths, strict=True)]
    asked = np.concatenate([*chosen, begins + lengths])  # and all last observations
    (values,) = _in_chunks(lambda *rows: (value(*rows),), [column[asked] for column in (observations, *masks)])
    first, later = _in_chunks(regularization, [observations, actions, *masks])
    ends = values[-len(episodes) :]
    returns = []
    for episode, begin, rows, end in zip(episodes, begins, chosen, ends, strict=True):
        steps = slice(begin, begin + len(episode.rewards))
        last = 0.0 if episode.terminated else end
        whole = soft_returns(episode.rewards, first[steps], later[steps], last, discount, n_step)
        returns.append(whole[rows - begin])
    followed = np.concatenate(returns)
    found = float(np.mean(values[: len(followed)] - followed)), float(np.std(followed))
    return dict(zip(METRICS, found, strict=True))


def range_of_returns(episodes: Sequence[Episode], discount: float) -> tuple[float, float]:
    """The lowest and the highest discounted return of rewards from any state, less and plus a standard deviation.

    An episode that a time limit cut is taken to go on as in its last 1 / (1 - discount) steps.
    """
    found = []
    for episode in episodes:
        recent = episode.rewards[-round(1 / (1 - discount)) :]
        end = 0.0 if episode.terminated else float(np.mean(recent)) / (1 - discount)
        nothing = np.zeros(len(episode.rewards))
        found.append(soft_returns(episode.rewards, nothing, nothing, end, discount))
    returns = np.concatenate(found)
    spread = float(returns.std())
    return float(returns.min()) - spread, float(returns.max()) + spread


def soft_returns(rewards: Array, first: Array, later: Array, end: float, discount: float, n_step: int = 1) -> Array:
    """The return that followed every step of an episode, as n-step targets add it up: [L].

    G_t = first_t + sum_{0 < i < n} gamma^i later_{t+i} + sum_{i < n} gamma^i r_{t+i} + gamma^n G_{t+n}, where G is
    `end` at the end of the episode. Computed as the return with `later` at every step, plus the difference
    first - later at every n-th step.
    """
    total = np.zeros(len(rewards))
    instead = np.zeros(len(rewards) + n_step)
    following = end
    for t in reversed(range(len(rewards))):
        following = rewards[t] + later[t] + discount * following
        instead[t] = first[t] - later[t] + discount**n_step * instead[t + n_step]
        total[t] = following + instead[t]
    return total


def _in_chunks(ask: Ask, columns: Sequence[Array]) -> list[Array]:
    """The answers to all rows of the columns."""
    count, chunks = len(columns[0]), []
    for begin in range(0, count, _ROWS):
        rows = np.arange(begin, begin + _ROWS) % count  # the last call is filled up with any rows
        chunks.append([np.asarray(part, np.float64) for part in ask(*(column[rows] for column in columns))])
    return [np.concatenate(part)[:count] for part in zip(*chunks, strict=True)]
