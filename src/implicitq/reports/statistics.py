"""Aggregate statistics over tasks and seeds, with stratified bootstrap intervals. NumPy only.

Scores are matrices [S, T] (seeds, tasks). After Agarwal et al. 2021, "Deep reinforcement learning at the edge of the
statistical precipice". Missing entries are NaN: a task may have fewer seeds than another. Seeds are resampled within
each task, never episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from implicitq.types import Array

RESAMPLES = 2_000
CONFIDENCE = 0.95


class Interval(NamedTuple):
    value: float
    low: float
    high: float


def mean(scores: Array) -> Array:
    """Mean of the tasks' means: [..., S, T] -> [...]."""
    return np.nanmean(scores, axis=-2).mean(axis=-1)


def median(scores: Array) -> Array:
    """Median of the tasks' means: [..., S, T] -> [...]."""
    return np.median(np.nanmean(scores, axis=-2), axis=-1)


def iqm(scores: Array) -> Array:
    """Interquartile mean over all seeds and tasks: the lowest and highest quarter are left out."""
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)  # NaN go to the end
    count = np.isfinite(flat).sum(axis=-1, keepdims=True)
    cut = count // 4
    rank = np.arange(flat.shape[-1])
    kept = (rank >= cut) & (rank < count - cut)
    return np.where(kept, flat, 0.0).sum(axis=-1) / kept.sum(axis=-1)


AGGREGATES: dict[str, Callable[[Array], Array]] = {"IQM": iqm, "mean": mean, "median": median}


def resampled(scores: Array, generator: np.random.Generator, count: int = RESAMPLES) -> Array:
    """Bootstrap samples [R, S, T]: for each task alone, its seeds drawn with replacement."""
    samples = np.full((count, *scores.shape), np.nan)
    for task, column in enumerate(scores.T):
        present = column[np.isfinite(column)]
        if len(present):
            samples[:, : len(present), task] = generator.choice(present, (count, len(present)))
    return samples


def intervals(scores: Array, generator: np.random.Generator, count: int = RESAMPLES) -> dict[str, Interval]:
    """Every aggregate with its percentile bootstrap interval."""
    samples = resampled(scores, generator, count)
    return {
        name: Interval(float(of(scores)), *map(float, bounds(of(samples), scores))) for name, of in AGGREGATES.items()
    }


def bounds(values: Array, *scores: Array) -> Array:
    """Bounds of the central 95% of bootstrap values [R, ...] of these scores: [2, ...].

    NaN where a task has a single seed, which cannot tell of its own noise.
    """
    tail = 50 * (1 - CONFIDENCE)
    found = np.percentile(values, [tail, 100 - tail], axis=0)
    known = all((np.isfinite(each).sum(axis=0) > 1).all() for each in scores)
    return found if known else np.full_like(found, np.nan)


def difference(x: Array, y: Array) -> Interval:
    """Mean of x less that of y, with Welch's interval, which takes few seeds and unequal spreads into account.

    NaN bounds where one of them has a single seed.
    """
    apart = float(x.mean() - y.mean())
    if min(len(x), len(y)) < 2:
        return Interval(apart, np.nan, np.nan)
    parts = np.array([each.var(ddof=1) / len(each) for each in (x, y)])
    if parts.sum() == 0:
        return Interval(apart, apart, apart)
    freedom = parts.sum() ** 2 / (parts**2 / [len(x) - 1, len(y) - 1]).sum()
    half = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2) * np.sqrt(parts.sum()))
    return Interval(apart, apart - half, apart + half)


def probability_of_improvement(x: Array, y: Array) -> Array:
    """Chance that a run of x beats a run of y on a task drawn at random; ties count half: [..., S, T] each."""
    with np.errstate(invalid="ignore"):
        pair = np.sign(x[..., :, None, :] - y[..., None, :, :])  # [..., S, S', T], NaN where one is missing
    return ((np.nanmean(pair, axis=(-3, -2)) + 1) / 2).mean(axis=-1)


def improvement(x: Array, y: Array, generator: np.random.Generator, count: int = RESAMPLES) -> Interval:
    """Probability of improvement of x over y with its interval; seeds of both are resampled."""
    xs, ys = resampled(x, generator, count), resampled(y, generator, count)
    parts = [probability_of_improvement(a, b) for a, b in zip(_split(xs), _split(ys), strict=True)]
    return Interval(float(probability_of_improvement(x, y)), *map(float, bounds(np.concatenate(parts), x, y)))


def profile(scores: Array, thresholds: Array) -> Array:
    """Share of runs with a score above each threshold, every task with the same weight: [..., S, T] -> [..., H]."""
    present = np.isfinite(scores).sum(axis=-2)  # [..., T]
    shares = [((scores > each).sum(axis=-2) / present).mean(axis=-1) for each in thresholds]
    return np.stack(shares, axis=-1)


def profile_band(
    scores: Array, thresholds: Array, generator: np.random.Generator, count: int = 500
) -> tuple[Array, Array, Array]:
    """The profile and pointwise bounds: [H] each."""
    low, high = bounds(profile(resampled(scores, generator, count), thresholds), scores)
    return profile(scores, thresholds), low, high


def curve_band(
    curves: Array, of: Callable[[Array], Array], generator: np.random.Generator, count: int = 500
) -> tuple[Array, Array, Array]:
    """An aggregate of scores along the grid with pointwise bounds: [G, S, T] -> [G] each.

    NaN where a task has nothing.
    """
    value, low, high = (np.full(len(curves), np.nan) for _ in range(3))
    for point, scores in enumerate(curves):
        if np.isfinite(scores).any(axis=0).all():
            value[point] = of(scores)
            low[point], high[point] = bounds(of(resampled(scores, generator, count)), scores)
    return value, low, high


def _split(samples: Array, size: int = 200) -> list[Array]:
    """The samples in parts: all pairs of seeds at once would take too much memory."""
    return [samples[start : start + size] for start in range(0, len(samples), size)]
