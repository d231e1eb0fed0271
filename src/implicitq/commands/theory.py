"""The command `implicitq theory`: the whole theory on chosen MDPs, as figures, a table and a page."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from implicitq.theory.complexity import QUICK_PLAN, SCHEMES, Complexity, ComplexityPlan, sample_complexity
from implicitq.theory.library import by_name
from implicitq.theory.mdp import check_alpha, check_count, check_number, check_temperature
from implicitq.theory.study import PARTS, Row, Study, StudyPlan, study, table

Name = Literal["garnet", "chain", "grid", "forest", "frozen-lake", "taxi", "cliff-walking"]


@dataclass(frozen=True)
class TheoryOptions:
    """Runs IQ-DP, MD-VI and both theorems of the paper on finite MDPs; writes figures, a table and a page."""

    mdp: tuple[Name, ...] = ("garnet",)
    """The finite MDPs to run on, one or several."""
    alpha: float = 0.9
    """Weight of the KL term within the temperature, from 0 to 1."""
    temperature: float = 1.0
    """Temperature (tau) of IQ-DP, > 0; the optimum it aims for is regularised at (1 - alpha) temperature."""
    iterations: int = 300
    """Iterations of the schemes; the experiment on averaging runs ten times as many."""
    noise: float = 0.1
    """Standard deviation of the errors injected at every step, in the unit of rewards."""
    seeds: int = 10
    """Number of noise seeds, run side by side."""
    complexity: bool = True
    """Also measure samples to an epsilon-optimal policy (about two minutes; a few seconds with --quick)."""
    quick: bool = False
    """A small version of everything, in a few seconds."""
    out: Path | None = None
    """Folder for the results; must be new or empty. Default: the next free runs/theory-N."""

    def __post_init__(self) -> None:
        if not self.mdp:
            raise ValueError("mdp must name at least one MDP, got none.")
        check_alpha(self.alpha)
        check_temperature(self.temperature)
        check_count("iterations", self.iterations, least=2)
        check_number("noise", self.noise, "a finite number >= 0", lambda x: x >= 0)
        check_count("seeds", self.seeds, least=1)

    def plan(self) -> StudyPlan:
        plan = StudyPlan(self.alpha, self.temperature, self.iterations, self.noise, self.seeds)
        if not self.quick:
            return plan
        return replace(plan, iterations=min(self.iterations, 60), seeds=min(self.seeds, 4))


def run_theory(options: TheoryOptions) -> Path:
    """Runs everything `options` asks for and returns the folder with the results."""
    from rich.console import Console

    console = Console()
    mdps = {name: by_name(name) for name in dict.fromkeys(options.mdp)}  # an unknown name fails before any work
    folder = fresh_folder(options.out)
    studies, found = _compute(options, mdps, console)
    rows = [row for result in studies for row in table(result)]
    if found is not None:
        rows += complexity_rows(found)
    _write(folder, options, studies, found, rows)
    console.print(_rich_table(rows))
    console.print(f"Figures, table.csv and index.html are in {folder}", soft_wrap=True)
    return folder


def complexity_rows(found: Complexity) -> list[Row]:
    """The fitted slopes beside those of the upper bounds."""
    rows = []
    for name, (accuracy, horizon) in found.slopes().items():
        rows.append(Row("ladder", "Samples", f"slope in 1/epsilon, {name}", accuracy, 2.0, "upper bound's"))
        rows.append(Row("ladder", "Samples", f"slope in 1/(1-discount), {name}", horizon, 4.0, "upper bound's"))
    return rows


def _compute(options: TheoryOptions, mdps: dict[str, Any], console: Any) -> tuple[list[Study], Complexity | None]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    complexity_plan = QUICK_PLAN if options.quick else ComplexityPlan()
    runs = len(SCHEMES) * (1 + len(complexity_plan.horizons)) if options.complexity else 0
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("theory", total=PARTS * len(mdps) + runs, completed=-1)  # a report opens its part

        def report(text: str) -> None:
            progress.update(task, advance=1, description=text)

        studies = [study(name, mdp, options.plan(), report=report) for name, mdp in mdps.items()]
        found = sample_complexity(complexity_plan, report=report) if options.complexity else None
        report("done")
    return studies, found


def fresh_folder(out: Path | None) -> Path:
    """`out`, which must be new or empty, or else the next free runs/theory-N; made if need be."""
    if out is None:
        number = 1
        while (folder := Path("runs") / f"theory-{number}").exists():
            number += 1
    else:
        folder = Path(out)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"out must be a new or empty folder, got {folder}, which is not.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(
    folder: Path, options: TheoryOptions, studies: list[Study], found: Complexity | None, rows: list[Row]
) -> None:
    from implicitq.reports import theory_figures as draw
    from implicitq.reports.theory_page import write_page, write_table

    pictures = []
    for result in studies:
        for kind, figure, caption in [
            ("theorem1", draw.draw_equivalence, "IQ-DP and MD-VI produce the same policies and values."),
            ("theorem2", draw.draw_bounds, "The exact gap of the policy stays below the bound."),
            ("averaging", draw.draw_averaging, "KL regularisation averages the errors out."),
            ("limits", draw.draw_limits, "Temperature to zero, and the fixed point."),
        ]:
            path = draw.save(figure(result), folder, f"{result.name}-{kind}")
            pictures.append((path, f"{result.name}: {caption}"))
    if found is not None:
        path = draw.save(draw.draw_complexity(found), folder, "samples")
        pictures.append((path, "Samples to an epsilon-optimal policy; dotted: the slope of the upper bound."))
    write_table(rows, folder / "table.csv")
    versions = {name: metadata.version(name) for name in ("numpy", "scipy", "matplotlib")}
    settings = {**asdict(options), "out": None, **asdict(options.plan())}
    (folder / "options.json").write_text(json.dumps({"options": settings, "versions": versions}, indent=2) + "\n")
    plan = options.plan()
    facts = (
        f"alpha {plan.alpha:g}, temperature {plan.temperature:g}, {plan.iterations} iterations, "
        f"noise {plan.noise:g}, {plan.seeds} seeds; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + "."
    )
    title = "The theory of implicit Q-values on " + ", ".join(result.name for result in studies)
    write_page(folder / "index.html", title=title, facts=facts, rows=rows, figures=pictures)


def _rich_table(rows: list[Row]) -> Any:
    from rich.table import Table

    from implicitq.reports.theory_page import number_text, reference_text

    shown = Table("MDP", "part", "quantity", title="The theory, in numbers")
    shown.add_column("value", justify="right")
    shown.add_column("to hold against")
    for row in rows:
        shown.add_row(row.mdp, row.part, row.quantity, number_text(row.value), reference_text(row))
    return shown
