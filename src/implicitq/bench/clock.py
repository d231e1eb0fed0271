"""Timing of several pieces of work, in turn and repeatedly."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_LEAST_SECONDS = 0.1  # of one repeat, so that the clock and interruptions hardly matter
_MOST_CALLS = 10_000
_SETTLE = 0.1  # seconds before a turn: the threads of NumPy's products wait busily for some 30 ms after the last one


class Timing(NamedTuple):
    """Seconds of one call, over the repeats."""

    median: float
    fastest: float
    slowest: float

    def told(self, scale: float = 1.0) -> dict[str, float]:
        """As a dict for JSON, multiplied by `scale`."""
        return {name: scale * value for name, value in self._asdict().items()}


def by_turns(
    works: Mapping[str, Callable[[], Any]], repeats: int, seconds: float = _LEAST_SECONDS
) -> dict[str, Timing]:
    """Time each piece of work for about `seconds`, in turn, `repeats` times: all meet the same noise.

    First calls, which compile or warm up, do not count.
    """
    counts = {name: _calls_in(work, seconds) for name, work in works.items()}
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            time.sleep(_SETTLE)
            work()
            found[name].append(seconds_of(work, counts[name]) / counts[name])
    return {name: summary(times) for name, times in found.items()}


def seconds_of(work: Callable[[], Any], count: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(count):
        work()
    return time.perf_counter() - start


def summary(times: list[float]) -> Timing:
    return Timing(statistics.median(times), min(times), max(times))


def _calls_in(work: Callable[[], Any], seconds: float) -> int:
    work()
    count = 1
    while count < _MOST_CALLS:
        taken = seconds_of(work, count)
        if taken >= seconds / 4:
            return max(1, round(count * seconds / taken))
        count *= 4
    return count
