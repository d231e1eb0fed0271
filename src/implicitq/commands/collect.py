"""implicitq collect: run folders into a study table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from implicitq.commands.display import console
from implicitq.commands.parsing import Folder, parse
from implicitq.sweeps.collecting import collect
from implicitq.sweeps.suites import suite_of


@dataclass(frozen=True)
class Options:
    """Collect the runs below a folder into a study table: a few small files that can be kept in a repository.

    OUT gets evaluations.csv (algo, env, seed, step, mean_return, cpu_seconds), about.json (configs, versions, scores
    of the random policy, plans of sweeps) and, where there are metrics, metrics.csv. If OUT holds a table already, the
    runs are added to it, and longer runs replace shorter ones. implicitq report reads a table as it reads run folders,
    and implicitq sweep --out OUT goes on from it.
    """

    directory: Folder  # Folder with runs below it.
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]  # Folder of the table; may be the same.
    suite: Annotated[
        str | None,
        tyro.conf.arg(
            help="Suite (name or .toml file) that the runs were made with: settings that it gives to all runs are left "
            "out of their names in the table. Runs of a sweep do not need it."
        ),
    ] = None
    metrics: bool = True  # Keep the algorithm's metrics at the evaluations too, in metrics.csv.


def run(arguments: list[str]) -> int:
    options = parse(Options, "collect", arguments)
    suite = None if options.suite is None else suite_of(options.suite)
    done = collect(options.directory, options.out, suite, options.metrics)
    for each in done.broken:
        console.print(f"left out: {each.name}: {each.reason}")
    for each in done.without_metrics:
        console.print(f"left out: the metrics of {each.name}: {each.reason}")
    lines = len({run.label for run in done.runs})
    changes = f"{done.new} of them new, {done.extended} longer than before"
    console.print(f"{options.out}: {len(done.runs)} runs of {lines} lines, {changes}")
    return 0
