"""Trackers: the curves of a run in TensorBoard or Weights & Biases, one file each, and the listener that fills them.

A tracker is a sink: a module with `class Sink` (see `Sink` here) and a line in `TRACKERS`. Its files lie below the run
folder. What is tracked changes nothing of what is learnt, so it is no part of the config.

At every start the listener gives the tracker the whole curve so far, from the logs of the run folder, which end where
the training goes on; then whatever comes. So a curve has no gap and no point twice, however the run was stopped, and
one that began without a tracker gets its beginning too.
"""

from __future__ import annotations

import importlib
import math
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from implicitq import configs
from implicitq.events import CheckpointDue, Evaluated, Event, Measured, Started, Stopped
from implicitq.runs.layout import read_evaluations, read_versions
from implicitq.runs.logs import read_metrics, wall_seconds
from implicitq.types import InputError
from implicitq.validation import nearest

# Name, which is that of our extra too -> module.
TRACKERS = {
    "tensorboard": "implicitq.trackers.tensorboard",
    "wandb": "implicitq.trackers.wandb",
}
NONE = "none"
_ID = re.compile(r"[0-9a-z]{1,32}")

# What the numbers of a run are called where people compare runs of many libraries.
_NAMES = {
    "episode_return": "rollout/ep_rew_mean",
    "episode_length": "rollout/ep_len_mean",
    "episodes": "rollout/episodes",
    "env_restarts": "rollout/env_restarts",
    "updates": "train/n_updates",
    "entropy_per_dimension": "train/entropy",
}
_FPS = "time/fps"


class About(NamedTuple):
    """What a tracker is told of a run before its first point."""

    folder: Path
    id: str  # made for this run, and kept in its folder
    title: str
    config: dict[str, Any]
    versions: dict[str, Any]


def own_folder(about: About, name: str) -> Path:
    """The folder of a tracker below that of a run; refused if it is a link, or no folder."""
    folder = about.folder / name
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder} is not a folder of its own; remove it, or choose another run folder")
    return folder


class Sink(Protocol):
    """Where points go. Steps never descend from `begin` on; two points of one step have different names."""

    def begin(self, about: About) -> None:
        """Start over: the whole curve follows."""
        ...

    def put(self, step: int, values: dict[str, float], when: float) -> None:
        """A point of every name; `when` is in seconds since 1970."""
        ...

    def flush(self) -> None: ...

    def end(self) -> None: ...


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names of trackers, each once; none of them for `none`."""
    known = {*TRACKERS, NONE}
    found = tuple(dict.fromkeys([names] if isinstance(names, str) else names))
    for name in found:
        if name not in known:
            raise InputError(f"unknown tracker {name!r}{nearest(name, known)}")
    if NONE in found and len(found) > 1:
        raise InputError(f"track must be {NONE!r} or names of trackers, got {' '.join(found)}")
    return tuple(name for name in found if name != NONE)


def chosen(track: Iterable[str] | None, noted: Any) -> dict[str, Any]:
    """Which trackers a run is to have, and its id there: what is given, or else what its folder has noted."""
    noted = noted if isinstance(noted, dict) else {}
    identity, names = noted.get("id"), noted.get("trackers")
    if not isinstance(identity, str) or not _ID.fullmatch(identity):
        identity = secrets.token_hex(4)
    if track is None:
        track = names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []
    return {"trackers": list(check_names(track)), "id": identity}


def build(choice: dict[str, Any], folder: Path) -> list[Tracking]:
    """A listener for each tracker of `chosen`; InputError if the package that one needs is missing."""
    return [Tracking(name, _sink(name), folder, choice["id"]) for name in choice["trackers"]]


def require(names: Iterable[str]) -> None:
    """InputError if one of the packages is missing: before a run folder is made for it."""
    for name in check_names(names):
        _sink(name)


def _sink(name: str) -> Sink:
    try:
        return importlib.import_module(TRACKERS[name]).Sink()
    except ImportError as error:
        raise InputError(
            f"tracking with {name} needs a package that is missing ({error}); install it with: "
            f"pip install 'implicitq[{name}]', or leave it out (--track {NONE})"
        ) from None


class Tracking:
    """Passes a run on to a sink."""

    def __init__(self, name: str, sink: Sink, folder: Path, identity: str) -> None:
        self.__name__ = name  # in the sentence about a failure
        self._sink, self._folder, self._identity = sink, folder, identity

    def on_event(self, event: Event) -> None:
        match event:
            case Started():
                self._begin(event)
            case Measured():
                now = time.monotonic()
                before, then = self._last
                rate = (event.step - before) / max(1e-9, now - then)
                self._last = event.step, now
                self._sink.put(event.step, {**_of_event(event), _FPS: rate}, time.time())
            case Evaluated():
                self._sink.put(event.step, _of_event(event), time.time())
            case CheckpointDue():
                self._sink.flush()
            case Stopped():
                self._sink.end()

    def _begin(self, event: Started) -> None:
        config = event.config
        title = f"{config.algorithm} on {config.env}, seed {config.seed}"
        versions = read_versions(self._folder) or {}
        self._sink.begin(About(self._folder, self._identity, title, configs.to_json(config), versions))
        self._last = event.step, time.monotonic()
        for step, values, when in self._history():
            self._sink.put(step, values, when)
        self._sink.flush()

    def _history(self) -> list[tuple[int, dict[str, float], float]]:
        """All points so far; their times are as if the run had not been interrupted."""
        wall = wall_seconds(self._folder)
        ended = time.time() - max(wall.values(), default=0.0)
        columns = read_metrics(self._folder)
        rows: list[tuple[int, dict[str, float]]] = []
        before, then = 0, 0.0
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, map(float, values), strict=True))
            step = int(row.pop("step"))
            point, now = _of_metrics(row), wall.get(step)
            if now is not None and now > then:
                point[_FPS] = (step - before) / (now - then)
                before, then = step, now
            rows.append((step, point))
        rows += [(done.step, _of_event(Evaluated(done))) for done in read_evaluations(self._folder)]
        rows.sort(key=lambda row: row[0])
        return [(step, values, ended + wall.get(step, 0.0)) for step, values in rows]


def _of_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """A row of metrics under its names; what was not measured is left out."""
    return {_NAMES.get(name, f"train/{name}"): value for name, value in values.items() if math.isfinite(value)}


def _of_event(event: Measured | Evaluated) -> dict[str, float]:
    if isinstance(event, Measured):
        return _of_metrics(event.values)
    done = event.evaluation
    return {"eval/mean_reward": done.mean, "eval/mean_ep_length": sum(done.lengths) / len(done.lengths)}
