"""The report: run folders in, one page with figures, tables and every circumstance out. Needs no JAX."""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from implicitq.configs import Config
from implicitq.reports import figures, page, statistics, tables
from implicitq.reports.reading import Gathered, Section, as_planned, distinct, gather
from implicitq.reports.scores import StudyScores, TaskScores, score_study
from implicitq.reports.tables import DataTable
from implicitq.runs.atomic_files import write_atomically
from implicitq.runs.conditions import OF_THE_PROCESS
from implicitq.runs.finding import REPORT
from implicitq.runs.layout import slug
from implicitq.runs.settings import identity, to_file
from implicitq.runs.strangers import refuse_links
from implicitq.sweeps.sweep import train_command
from implicitq.types import Array, InputError

_AGGREGATES = {
    "IQM": "Mean of the middle half of all runs' normalised scores",
    "mean": "Mean over tasks of normalised scores, as in the paper",
    "median": "Median over tasks of normalised scores, as in the paper",
}
_SEED = 0  # of the bootstrap: the same folder gives the same page
_INTERVAL = (
    f"Intervals and bands of normalised scores are 95% percentile bootstrap intervals: {statistics.RESAMPLES:,} "
    "resamples (500 for bands) of the seeds within each task; a line with a single seed on some task has none. "
    "Bands of returns are one standard deviation over seeds."
)
_SCORE = (
    "A normalised score is (x - random) / (SAC - random): x is the mean return of a run's last evaluation "
    "(deterministic policy), random that of uniform actions, SAC the mean over seeds of the best SAC configuration "
    "at the same number of steps. IQM is the mean of the middle half of all runs; mean and median are over the tasks' "
    "means."
)
_TIME = (
    "Processor time is that of all threads of a run, evaluations included (timing.csv). At equal processor time, SAC "
    "counts with the mean return it has after as many seconds as the line took in all, linear between evaluations; "
    "beyond its end with its last one."
)


@dataclass(frozen=True)
class Written:
    page: Path
    runs: int
    broken: int
    missing: int


def write_report(root: Path, version_set: int | None = None, steps: int | None = None) -> Written:
    """Write DIR/report: index.html, figures/ (PDF, PNG) and tables/ (CSV, LaTeX, Markdown)."""
    if steps is not None and steps < 1:
        raise InputError(f"steps must be a whole number of at least 1, got {steps}")
    found = gather(root, version_set)
    out = refuse_links(root, root / REPORT)
    parts: list[str] = [*_about(found)]
    with mpl.rc_context(figures.STYLE):
        for section in found.sections:
            scores = score_study(section.title, section.lines, section.random, steps)
            parts += _section(out, section, scores)
    parts += _circumstances(found)
    finished = sum(run.finished for run in found.runs)
    broken = page.count(len(found.broken), "broken folder")
    facts = f"{page.count(len(found.runs), 'run')}, {finished} of them finished; {broken} left out."
    title = f"implicitq report: {', '.join(section.title.lower() for section in found.sections)}"
    _write(out, "index.html", page.page(title, facts, parts).encode())
    missing = sum(len(section.missing) for section in found.sections)
    return Written(out / "index.html", len(found.runs), len(found.broken), missing)


def _about(found: Gathered) -> Iterator[str]:
    entries = [(section.title, section.name) for section in found.sections]
    yield page.contents([*entries, ("Circumstances", "circumstances")])
    for note in found.notes:
        yield page.paragraph(note, "notice")
    if found.broken:
        items = [f"{each.name}: {each.reason}" for each in found.broken]
        yield page.listing(
            f"{page.count(len(items), 'broken or half-written folder')}, left out of everything below", items, True
        )


def _section(out: Path, section: Section, scores: StudyScores) -> Iterator[str]:
    yield page.heading(section.title, section.name)
    if section.command:
        yield page.commands("The command that makes this study", [section.command], opened=True)
    done = section.planned - len(section.missing)
    yield page.paragraph(f"{done} of {section.planned} planned runs are finished.")
    if section.missing:
        yield page.listing(
            f"{page.count(len(section.missing), 'run')} missing or unfinished; the command above goes on",
            section.missing,
        )
    if section.left_out:
        yield page.listing(f"{page.count(len(section.left_out), 'combination')} not possible", section.left_out)
    if scores.notes:
        yield page.listing(f"{page.count(len(scores.notes), 'note')} on how evaluations were aligned", scores.notes)
    tasks, matrices = scores.comparable()
    for task in scores.tasks:
        if task.problem:
            yield page.paragraph(f"{task.task} has returns but no normalised scores: {task.problem}.", "notice")
    if matrices:
        yield from _normalised(out, section, scores, tasks, matrices)
    yield "<h3>Returns, task by task</h3>"
    names = [f"{section.name}-{stem}" for stem in distinct(slug(task.task) for task in scores.tasks)]
    named = list(zip(names, scores.tasks, strict=True))
    yield page.figures([_curves(out, name, scores, task) for name, task in named])
    yield _table(out, section, tables.returns_table(scores))
    timed = [(name, task) for name, task in named if any(cell.cost is not None for cell in task.cells.values())]
    if timed:
        yield "<h3>Returns for processor time</h3>"
        yield page.figures([_curves(out, f"{name}-time", scores, task, against_time=True) for name, task in timed])
        yield page.paragraph(_TIME, "soft")
    costs = tables.cost_table(scores)
    if costs is not None:
        yield _table(out, section, costs)


def _normalised(
    out: Path, section: Section, scores: StudyScores, tasks: tuple[TaskScores, ...], matrices: dict[str, Array]
) -> Iterator[str]:
    generator = np.random.default_rng(_SEED)
    found = {line: statistics.intervals(matrix, generator) for line, matrix in matrices.items()}
    names = ", ".join(task.task for task in tasks)
    seeds = {line: _seed_range(matrix) for line, matrix in matrices.items()}
    yield f"<h3>Normalised scores over {page.count(len(tasks), 'task')}</h3>"
    yield page.paragraph(f"Tasks: {names}. {_SCORE} {_INTERVAL}", "soft")
    absent = [line for line in scores.lines if line not in matrices]
    if absent:
        yield page.paragraph(
            f"Without a finished run on each of these tasks, and so not here: {', '.join(absent)}.", "notice"
        )
    over = next((t.baseline_line for t in tasks if t.baseline_line in matrices), None)
    rivals = {
        line: statistics.improvement(matrix, matrices[over], generator)
        for line, matrix in matrices.items()
        if over is not None and line != over
    }
    count = _seed_range(*matrices.values())
    tail = f"{page.count(len(tasks), 'task')}, {count} seeds each; bars and bands: 95% bootstrap intervals over seeds."
    drawn = [
        ("aggregates", figures.aggregates(scores, found), f"Aggregated normalised scores at the end. {tail}"),
        ("profile", figures.profiles(scores, matrices, generator), f"How many runs reach which score. {tail}"),
    ]
    curves = {name: figures.along_training(scores, tasks, name, generator) for name in statistics.AGGREGATES}
    drawn[1:1] = [
        (f"{name.lower()}-along-training", figure, f"{_AGGREGATES[name]}, along training. {tail}")
        for name, figure in curves.items()
    ]
    if rivals and over is not None:
        drawn.insert(1, ("improvement", figures.improvements(scores, rivals, over), f"0.5: as often as not. {tail}"))
    yield page.figures([_saved(out, f"{section.name}-{name}", figure, caption) for name, figure, caption in drawn])
    yield _table(out, section, tables.aggregates_table(found, seeds))
    if rivals and over is not None:
        yield _table(out, section, tables.improvement_table(rivals, over))


def _circumstances(found: Gathered) -> Iterator[str]:
    yield page.heading("Circumstances", "circumstances")
    versions = found.versions
    if versions is None:
        yield page.paragraph("The versions these runs were made with are not recorded.", "notice")
    else:
        kept = [(k, str(v)) for k, v in versions.items() if k not in OF_THE_PROCESS]
        yield tables.html_table("Versions", ("package", "version"), kept)
        yield page.listing(f"Machines: {len(found.machines)}", found.machines)
    for algorithm, theirs in found.foreign_versions.items():
        rows = [(name, str(version)) for name, version in theirs.items()]
        yield tables.html_table(f"Versions of {algorithm}", ("package", "version"), rows)
    if found.random:
        rows = [(t, f"{e['mean']:,.1f}", f"{e['std']:,.1f}", str(e["episodes"])) for t, e in found.random.items()]
        yield tables.html_table("Random policy", ("task", "mean return", "std over episodes", "episodes"), rows)
    first = {}
    for section in found.sections:
        for label, runs in section.lines.items():
            for run in runs:
                first.setdefault((label, run.config.env, identity(run.config, {"seed"})), run)
    lines = [
        f"implicitq {shlex.join(train_command(as_planned(run.config), Path(run.name)))}  # {label}"
        for (label, *_), run in first.items()
        if isinstance(run.config, Config)
    ]
    yield page.commands("One run of every line and task, as a command", lines)
    for (label, task, _), run in first.items():
        text = html.escape(json.dumps(to_file(run.config), indent=1))
        yield f"<details><summary>Config: {html.escape(f'{label} on {task}')}</summary><pre>{text}</pre></details>"


def _write(out: Path, name: str, content: bytes) -> None:
    write_atomically(refuse_links(out, out / name), content)


def _saved(out: Path, name: str, figure: Figure, caption: str) -> tuple[str, str, str]:
    for form in ("pdf", "png"):
        _write(out, f"figures/{name}.{form}", figures.to_file(figure, form))
    return figures.to_svg(figure, name, html.escape(caption)), caption, name


def _table(out: Path, section: Section, table: DataTable) -> str:
    stem = f"{section.name}-{table.name}"
    forms = (
        ("CSV", "csv", table.to_csv()),
        ("LaTeX", "tex", table.to_latex()),
        ("Markdown", "md", table.to_markdown()),
    )
    for _, ending, text in forms:
        _write(out, f"tables/{stem}.{ending}", text.encode())
    links = " ".join(page.link(f"tables/{stem}.{ending}", name) for name, ending, _ in forms)
    return f'{table.to_html()}<p class="soft">{links}</p>'


def _curves(
    out: Path, name: str, scores: StudyScores, task: TaskScores, against_time: bool = False
) -> tuple[str, str, str]:
    dotted = "" if task.random is None else " Dotted: the random policy."
    caption = f"{task.task}: mean over seeds, band of one standard deviation over seeds.{dotted}"
    return _saved(out, name, figures.task_curves(scores, task, against_time), caption)


def _seed_range(*matrices: Array) -> str:
    counts = np.concatenate([np.isfinite(matrix).sum(axis=0) for matrix in matrices])
    return str(counts.min()) if counts.min() == counts.max() else f"{counts.min()}-{counts.max()}"
