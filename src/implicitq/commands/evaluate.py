"""implicitq evaluate: what a trained policy scores."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from rich.table import Table

from implicitq.commands.display import console, table
from implicitq.commands.parsing import (
    BestPolicy,
    Cache,
    Device,
    EnvironmentName,
    EpisodeSeed,
    PolicySource,
    TrustFile,
    default,
    find_modules_here,
    parse,
)
from implicitq.compilation import use_cache
from implicitq.types import Evaluation


@dataclass(frozen=True)
class Options:
    """Play whole episodes with the policy of a run, and print their returns."""

    source: PolicySource
    best: BestPolicy = False
    episodes: int = 10  # Episodes to play.
    stochastic: bool = False  # Draw actions from the policy, as in training, instead of taking the deterministic one.
    seed: EpisodeSeed = None  # Seed of the episodes.
    env: EnvironmentName = None  # Gymnasium id of the task to play.
    trust_env: TrustFile = False
    render: Annotated[Literal["human"] | None, default("none", "human")] = None
    """human: play one episode after the other in a window; `implicitq video` writes a film instead."""
    device: Device = None
    cache: Cache = True
    json: bool = False  # Print JSON instead of a table.


def run(arguments: list[str]) -> int:
    options = parse(Options, "evaluate", arguments)
    find_modules_here(options.env)
    use_cache(options.cache)

    from implicitq.agent import load

    agent = load(options.source, options.env, best=options.best, trust_env=options.trust_env, device=options.device)
    done = agent.evaluate(
        options.episodes,
        seed=options.seed,
        deterministic=not options.stochastic,
        render=options.render == "human",
    )
    played = options.env or agent.config.env
    if options.json:
        about = {"env": played, "algorithm": agent.config.algorithm, "step": done.step}
        print(json.dumps({**about, "mean": done.mean, "std": done.std, **asdict(done)}))
    else:
        console.print(_episodes_table(agent.config.algorithm, played, done))
    return 0


def _episodes_table(algorithm: str, env: str, done: Evaluation) -> Table:
    title = f"{algorithm} on {env} after {done.step:,} steps"
    shown = table(title, "episode", "return", "length")
    for number, (total, length) in enumerate(zip(done.returns, done.lengths, strict=True)):
        shown.add_row(str(number), f"{total:,.1f}", str(length))
    shown.add_section()
    shown.add_row("mean ± std", f"{done.mean:,.1f} ± {done.std:,.1f}", "")
    return shown
