"""implicitq report: run folders as one page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from implicitq.commands.display import console
from implicitq.commands.parsing import Folder, default, parse


@dataclass(frozen=True)
class Options:
    """Turn run folders into figures, tables and one page: DIR/report/index.html.

    Takes the folder of one or several sweeps, or any folder with run folders or study tables below it. Normalised
    scores need finished runs of SAC on the same task; returns are shown in any case.
    """

    directory: Folder  # Folder with runs below it, or with a study table.
    steps: Annotated[int | None, default("the end of the runs", "INT")] = None  # Compare at this number of steps.
    version_set: Annotated[int | None, default("the only one", "INT")] = None
    """Which of several sets of package versions to report; runs of different sets are never mixed."""


def run(arguments: list[str]) -> int:
    options = parse(Options, "report", arguments)

    from implicitq.reports.report import write_report

    done = write_report(options.directory, options.version_set, options.steps)
    console.print(f"{done.page}: {done.runs} runs, {done.missing} missing or unfinished, {done.broken} broken")
    return 0
