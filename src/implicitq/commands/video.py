"""implicitq video: a trained policy at work, to look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from implicitq.commands.display import console
from implicitq.commands.parsing import (
    BestPolicy,
    Cache,
    EnvironmentName,
    EpisodeSeed,
    PolicySource,
    TrustFile,
    beside,
    default,
    find_modules_here,
    parse,
)
from implicitq.compilation import use_cache


@dataclass(frozen=True)
class Options:
    """Film episodes with the deterministic policy of a run."""

    source: PolicySource
    best: BestPolicy = False
    out: Annotated[Path | None, default("video.gif in DIR or beside FILE", "FILE")] = None  # A .gif or .mp4 file.
    episodes: int = 1  # Episodes to film.
    seed: EpisodeSeed = None  # Seed of the episodes.
    env: EnvironmentName = None  # Gymnasium id of the task to film.
    trust_env: TrustFile = False
    cache: Cache = True


def run(arguments: list[str]) -> int:
    options = parse(Options, "video", arguments)
    find_modules_here(options.env)
    use_cache(options.cache)

    from implicitq.agent import load
    from implicitq.video import record

    out = options.out or beside(options.source, "video.gif")
    agent = load(options.source, options.env, best=options.best, trust_env=options.trust_env)
    mean = record(agent, out, episodes=options.episodes, seed=options.seed)
    console.print(f"{out}: mean return {mean:,.1f} over {options.episodes} episode(s)")
    return 0
