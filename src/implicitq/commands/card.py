"""implicitq card: the model card of a run, alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from implicitq.commands.display import console
from implicitq.commands.parsing import (
    BestPolicy,
    EnvironmentName,
    Folder,
    TrustFile,
    default,
    find_modules_here,
    parse,
)
from implicitq.compilation import use_cache
from implicitq.runs import hub


@dataclass(frozen=True)
class Options:
    """Write the model card of a run: what the policy is, how it was made, what it scores. Markdown with metadata.

    `implicitq push` makes the same card and shares it with the policy.
    """

    directory: Folder  # Run folder.
    out: Annotated[Path | None, default("README.md in DIR", "FILE")] = None  # File of the card.
    repo: Annotated[str | None, default("none", "REPO")] = None  # Repository on the Hub, for the example.
    best: BestPolicy = False
    episodes: int = 20  # Fresh episodes to play, for the score in the card; 0: none.
    env: EnvironmentName = None  # Gymnasium id of the task to play.
    trust_env: TrustFile = False


def run(arguments: list[str]) -> int:
    options = parse(Options, "card", arguments)
    repo = None if options.repo is None else hub.check_repository(options.repo.removeprefix(hub.SCHEME))
    find_modules_here(options.env)
    use_cache()

    from implicitq.push import CARD, Sharing, describe
    from implicitq.runs.files import write_atomically

    sharing = Sharing(options.directory, repo, options.best, options.episodes, False, options.env, options.trust_env)
    made = describe(sharing)
    for text in made.left_out:
        console.print(f"left out: {text}")
    out = options.out or options.directory / CARD
    write_atomically(out, made.files[CARD])
    console.print(f"{out}")
    return 0
