"""What is shared of a run: the policy, its settings and scores, a curve, a film, and a card that explains them."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from implicitq import configs, machine, video
from implicitq.agent import Agent, load
from implicitq.card import Facts, card
from implicitq.configs import Config
from implicitq.envs.making import is_object
from implicitq.runs import branches, layout
from implicitq.runs.curve import learning_curve
from implicitq.runs.files import json_bytes, read_bytes, write_atomically
from implicitq.runs.layout import BEST, BRANCHES, CONFIG, CURVE, EVALUATIONS, METRICS, POLICY, VERSIONS
from implicitq.runs.logs import read_metrics
from implicitq.types import Evaluation, InputError

CARD = "README.md"
FILMS = ("replay.mp4", "replay.gif")  # the first is what the Hub shows beside a policy
FILES = (CARD, POLICY, CONFIG, VERSIONS, EVALUATIONS, METRICS, BRANCHES, CURVE, *FILMS)
"""All that is ever shared: no checkpoints, no replay, no clocks, no trackers."""

_MOST_FRAMES = {".mp4": 1_000, ".gif": 200}
_SEEDS_APART = 10_000  # how far the seed of fresh episodes lies from that of the run


@dataclass(frozen=True)
class Sharing:
    """What to share of a run folder, and how to score and film its policy."""

    folder: Path
    repo: str | None = None  # named in the card
    best: bool = False
    episodes: int = 20  # fresh ones, played for the card; 0: none
    film: bool = True
    env: str | None = None
    trust_env: bool = False


class Shared(NamedTuple):
    files: dict[str, bytes]  # by name
    left_out: list[str]  # what is missing and why, for the user alone: reasons may name things of the machine


def collect(sharing: Sharing) -> Shared:
    """All files to share."""
    folder = sharing.folder
    agent, config, evaluations = _read(sharing)
    found: dict[str, bytes] = {
        POLICY: read_bytes(folder / (BEST if sharing.best else POLICY)),
        CONFIG: json_bytes(configs.to_file(config)),
        VERSIONS: json_bytes(_versions(folder)),
        EVALUATIONS: read_bytes(folder / EVALUATIONS),
    }
    metrics = read_metrics(folder) if (folder / METRICS).is_file() else {}
    if metrics:
        found[METRICS] = read_bytes(folder / METRICS)
    noted = branches.read(folder)
    if noted:
        found[BRANCHES] = json_bytes(branches.to_file(noted))
    title = f"{config.algorithm} on {config.env}, seed {config.seed}"
    found[CURVE] = learning_curve(title, evaluations, metrics)
    left_out: list[str] = []
    if sharing.film:
        try:
            found |= _film(agent)
        except InputError as error:
            left_out.append(f"a film: {error}")
    fresh, why = _fresh(sharing, agent)
    facts = _facts(sharing, agent, config, evaluations, fresh)
    pictures = [name for name in (CURVE, FILMS[1]) if name in found]
    found[CARD] = card(replace(facts, pictures=pictures, no_film=bool(left_out))).encode()
    return Shared(found, [*left_out, *why])


def describe(sharing: Sharing) -> Shared:
    """The card alone; it shows the curve that the run folder has."""
    agent, config, evaluations = _read(sharing)
    fresh, why = _fresh(sharing, agent)
    pictures = [CURVE] if (sharing.folder / CURVE).is_file() else []
    facts = replace(_facts(sharing, agent, config, evaluations, fresh), pictures=pictures)
    return Shared({CARD: card(facts).encode()}, why)


def write_folder(files: Mapping[str, bytes], folder: Path) -> None:
    """Put the files into a folder instead of onto the Hub; it must be new, empty, or hold such files only."""
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - set(FILES)):
        raise InputError(f"{folder} holds other things than a shared policy; choose another folder")
    for name in FILES:
        if name in files:
            write_atomically(folder / name, files[name])
        else:
            (folder / name).unlink(missing_ok=True)  # of the policy that was there before


def _read(sharing: Sharing) -> tuple[Agent, Config, list[Evaluation]]:
    folder = sharing.folder
    if not layout.has_run(folder):
        raise InputError(f"{folder} is not a run folder: it has no {CONFIG}")
    try:
        layout.read_run(folder, folder.name)  # logs as the checkpoint knows them
        config = layout.read_config(folder)
        evaluations = layout.read_evaluations(folder)
    except InputError as error:
        raise InputError(f"{folder} cannot be shared: {error}") from None
    agent = load(folder, sharing.env, best=sharing.best, trust_env=sharing.trust_env)
    return agent, config, evaluations


def _fresh(sharing: Sharing, agent: Agent) -> tuple[Evaluation | None, list[str]]:
    """A score in episodes that the run has not played, or why there is none."""
    if not sharing.episodes:
        return None, []
    try:
        return agent.evaluate(sharing.episodes, seed=_fresh_seed(agent.config)), []
    except InputError as error:
        return None, [f"a score in fresh episodes: {error}"]


def _fresh_seed(config: Config) -> int:
    return (config.seed + _SEEDS_APART) % 2**32


def _facts(
    sharing: Sharing, agent: Agent, config: Config, evaluations: list[Evaluation], fresh: Evaluation | None
) -> Facts:
    return Facts(
        config=config,
        step=agent.step,
        best=sharing.best,
        evaluations=evaluations,
        fresh=fresh,
        fresh_seed=_fresh_seed(agent.config),
        versions=_versions(sharing.folder),
        branches=[each.told() for each in branches.read(sharing.folder)],
        from_object=is_object(config.env),
        repo=sharing.repo,
    )


def _versions(folder: Path) -> dict[str, Any]:
    """The versions that say how the run was made; nothing else that may be in the file."""
    known = ("python", *machine.PACKAGES, *machine.TASK_PACKAGES, "system", "processor", "threads")
    found = layout.read_versions(folder) or {}
    return {name: found[name] for name in known if isinstance(found.get(name), str | int)}


def _film(agent: Agent) -> dict[str, bytes]:
    name = FILMS[0] if importlib.util.find_spec("imageio_ffmpeg") else FILMS[1]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / name
        video.record(agent, path, most_frames=_MOST_FRAMES[path.suffix])
        return {name: path.read_bytes()}
