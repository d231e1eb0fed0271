"""The clocks of a run: timing.csv, and what goes on from it."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

COLUMNS = ("step", "wall_seconds", "cpu_seconds")


class Row(NamedTuple):
    step: int
    wall: float
    cpu: float


class Clock:
    """Wall and CPU seconds of the run, over all its sessions."""

    def __init__(self, wall: float, cpu: float, runs: int = 1) -> None:
        """`runs` that share the process share its CPU seconds evenly."""
        self._runs = runs
        self._wall, self._cpu = wall - time.monotonic(), cpu - time.process_time() / runs

    def read(self) -> tuple[float, float]:
        return round(self._wall + time.monotonic(), 3), round(self._cpu + time.process_time() / self._runs, 3)


def read_rows(content: bytes) -> tuple[list[Row], bool]:
    """All rows of a timing.csv that can be read, and whether it is as a run leaves it, however that ended."""
    header, *lines = content.split(b"\n")[:-1] or [b""]  # a sudden death may have cut the last one
    rows = [_row(line) for line in lines]
    return [row for row in rows if row is not None], header == ",".join(COLUMNS).encode() and None not in rows


def _row(line: bytes) -> Row | None:
    try:
        step, wall, cpu = line.split(b",")
        row = Row(int(step), float(wall), float(cpu))
    except ValueError:
        return None
    return row if all(0 <= value < math.inf for value in row) else None
