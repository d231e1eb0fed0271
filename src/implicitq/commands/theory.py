"""implicitq theory: the whole theory on chosen finite MDPs, as figures, a table and a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from implicitq.commands.display import console, table
from implicitq.commands.parsing import default, parse
from implicitq.reports.theory_page import fresh_folder, number_text, reference_text, tally, write_results
from implicitq.theory.complexity import FULL_PLAN, QUICK_PLAN, Complexity, ComplexityPlan, sample_complexity
from implicitq.theory.library import Name, by_name
from implicitq.theory.mdp import FiniteMDP
from implicitq.theory.study import PARTS, Row, Study, StudyPlan, study
from implicitq.theory.study import table as rows_of
from implicitq.types import InputError


@dataclass(frozen=True)
class Options:
    """Run IQ-DP, MD-VI and both theorems of the paper on finite MDPs; write figures, a table and a page."""

    mdp: tuple[Name, ...] = ("garnet",)  # The finite MDPs to run on, one or several.
    alpha: float = 0.9  # Weight of the KL term within the temperature, from 0 to 1.
    temperature: float = 1.0
    """tau of IQ-DP, > 0; its optimum is that of the MDP with entropy weight (1 - alpha) * temperature."""
    iterations: int = 300  # Iterations of the schemes; the experiment on averaging runs ten times as many.
    noise: float = 0.1  # Standard deviation of the errors injected at every step, in the unit of rewards.
    seeds: int = 10  # Number of noise seeds, run side by side.
    complexity: bool = True
    """Also measure the samples to an epsilon-optimal policy (about two minutes; a few seconds with --quick)."""
    quick: bool = False  # A small version of everything, in a few seconds.
    out: Annotated[Path | None, default("the next free runs/theory-N", "DIR")] = None
    """Folder for the results; must be new or empty."""


def run(arguments: list[str]) -> int:
    options = parse(Options, "theory", arguments)
    try:
        plan = StudyPlan(options.alpha, options.temperature, options.iterations, options.noise, options.seeds)
        mdps = {name: by_name(name) for name in dict.fromkeys(options.mdp)}
    except ValueError as error:  # the theory knows nothing of this package, InputError included
        raise InputError(str(error).removesuffix(".")) from error
    folder = fresh_folder(options.out)
    plan = plan.quick() if options.quick else plan
    samples = (QUICK_PLAN if options.quick else FULL_PLAN) if options.complexity else None
    studies, found = _compute(mdps, plan, samples)
    rows = [row for result in studies for row in rows_of(result)] + (found.table() if found is not None else [])
    asked = {"mdp": options.mdp, **asdict(plan), "complexity": options.complexity, "quick": options.quick}
    write_results(folder, studies, found, rows, asked)
    console.print(_rows_table(rows))
    console.print(f"{tally(rows)} What each means is in {folder / 'index.html'}, with figures and table.csv beside it.")
    return 0


def _compute(
    mdps: Mapping[str, FiniteMDP], plan: StudyPlan, samples: ComplexityPlan | None
) -> tuple[list[Study], Complexity | None]:
    """Everything, behind a progress bar."""
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    parts = PARTS * len(mdps) + (samples.parts if samples is not None else 0)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("theory", total=parts, completed=-1)  # a report opens its part

        def report(text: str) -> None:
            progress.update(task, advance=1, description=text)

        studies = [study(name, mdp, plan, report=report) for name, mdp in mdps.items()]
        found = sample_complexity(samples, report=report) if samples is not None else None
        report("done")
    return studies, found


def _rows_table(rows: list[Row]) -> Table:
    columns = ("MDP", "part", "quantity", "value", "to hold against", "verdict")
    shown = table("The theory, in numbers", *columns, left=set(columns) - {"value"})
    for row in rows:
        shown.add_row(row.mdp, row.part, row.quantity, number_text(row.value), reference_text(row), row.verdict)
    return shown
