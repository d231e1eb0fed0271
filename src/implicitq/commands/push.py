"""implicitq push: a trained policy for others, on the Hugging Face Hub or in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

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
    """Share the policy of a run on the Hugging Face Hub: implicitq.load("hf://REPO") loads it anywhere.

    Shared are the policy, config.json, versions.json, evaluations.csv, metrics.csv, the learning curve, a short film if
    one can be made here, and a model card with results, command and versions. Nothing of it names your machine or you.
    Log in first, with: hf auth login. Look at everything before, with: --out FOLDER.
    """

    directory: Folder  # Run folder.
    repo: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="REPO")]  # owner/name on the Hub; made if new.
    best: BestPolicy = False
    private: bool = False  # Make the repository private; refused if it exists and is public.
    out: Annotated[Path | None, default("upload", "FOLDER")] = None
    """Write the files into this folder instead, without any network."""
    episodes: int = 20  # Fresh episodes to play, for the score in the card; 0: none.
    video: bool = True  # Film an episode.
    env: EnvironmentName = None  # Gymnasium id of the task, to play and film.
    trust_env: TrustFile = False


def run(arguments: list[str]) -> int:
    options = parse(Options, "push", arguments)
    repo = hub.check_repository(options.repo.removeprefix(hub.SCHEME))
    find_modules_here(options.env)
    use_cache()

    from implicitq.push import FILES, Sharing, collect, write_folder

    if options.out is None:
        hub.require_login()  # before episodes are played for nothing
    sharing = Sharing(
        options.directory, repo, options.best, options.episodes, options.video, options.env, options.trust_env
    )
    shared = collect(sharing)
    for text in shared.left_out:
        console.print(f"left out: {text}")
    if options.out is not None:
        write_folder(shared.files, options.out)
        console.print(f"{options.out}: {', '.join(shared.files)}")
        return 0
    message = f"Policy of implicitq: {len(shared.files)} files"
    address = hub.upload(repo, shared.files, FILES, message, options.private)
    console.print(f'{address}\nload it with: implicitq.load("{hub.SCHEME}{repo}")')
    return 0
