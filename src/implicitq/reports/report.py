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

from implicitq.configs import Config, train_command
from implicitq.machine import OF_THE_PROCESS
from implicitq.reports import figures, page, statistics, tables
from implicitq.reports.reading import Gathered, Section, distinct, gather
from implicitq.reports.scores import StudyScores, TaskScores, score_study
from implicitq.reports.signals import Signals
from implicitq.reports.summary import HOW, summary
from implicitq.reports.tables import DataTable
from implicitq.runs.files import refuse_links, write_atomically
from implicitq.runs.finding import REPORT
from implicitq.runs.layout import slug
from implicitq.runs.settings import identity, to_file
from implicitq.types import Array, InputError

_AGGREGATES = {
    "IQM": "Mean of the middle half of all runs' normalised scores",
    "mean": "Mean over tasks of normalised scores, as in the paper",
    "median": "Median over tasks of normalised scores, as in the paper",
}
_SEED = 0  # of the bootstrap: the same folder gives the same page
_INTERVAL = (
    f"Intervals and bands of normalised scores are 95% percentile bootstrap intervals: {statistics.RESAMPLES:,} "
    "resamples (500 for bands) of the seeds within each task; a line with a single seed on some task has none."
)
_BANDS = (
    "Bands of returns are one standard deviation over seeds, where there are several. Loss, value, entropy and "
    "temperature are those of metrics.csv."
)
_REMEDY = "Try a lower learning_rate, a smaller target_update, or normalize_observations."
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
    scored = [(each, score_study(each.title, each.lines, each.random, steps, each.same)) for each in found.sections]
    signals = Signals()
    body: list[str] = []
    with mpl.rc_context(figures.STYLE):
        for section, scores in scored:
            body += _section(out, section, scores, signals)
    parts = [*_about(found, signals), page.heading("Summary", "summary"), page.paragraph(HOW, "soft")]
    for section, scores in scored:
        parts += summary(section, scores)
    parts += [*body, *_circumstances(found)]
    finished = sum(run.finished for run in found.runs)
    broken = f"; {page.count(len(found.broken), 'broken folder')} left out" if found.broken else ""
    facts = f"{page.count(len(found.runs), 'run')}, {finished} of them finished{broken}."
    title = f"implicitq report: {root.resolve().name}"
    _write(out, "index.html", page.page(title, facts, parts).encode())
    missing = sum(len(section.missing) for section in found.sections)
    return Written(out / "index.html", len(found.runs), len(found.broken), missing)


def _about(found: Gathered, signals: Signals) -> Iterator[str]:
    entries = [(section.title, section.name) for section in found.sections]
    yield page.contents([("Summary", "summary"), *entries, ("Circumstances", "circumstances")])
    for note in found.notes:
        yield page.paragraph(note, "notice")
    if signals.diverged:
        items = sorted(signals.diverged.values())
        title = f"{page.count(len(items), 'run')} diverged: values that rewards cannot explain. {_REMEDY}"
        yield page.warning(title, items)
    if found.broken:
        items = [f"{each.name}: {each.reason}" for each in found.broken]
        title = f"{page.count(len(items), 'broken or half-written folder')}, left out of everything below"
        yield page.warning(title, items)
    if signals.notes:
        title = f"{page.count(len(signals.notes), 'run')} without loss, value and entropy"
        yield page.listing(title, list(signals.notes.values()))


def _section(out: Path, section: Section, scores: StudyScores, signals: Signals) -> Iterator[str]:
    yield page.heading(section.title, section.name)
    if section.command:
        yield page.commands("The command that makes this study", [section.command], opened=True)
    if section.missing:
        yield page.listing(f"{page.count(len(section.missing), 'run')} missing or unfinished", section.missing)
    if section.left_out:
        yield page.listing(f"{page.count(len(section.left_out), 'combination')} not possible", section.left_out)
    if scores.notes:
        yield page.listing(f"{page.count(len(scores.notes), 'note')} on what is compared with what", scores.notes)
    tasks, matrices = scores.comparable()
    if matrices:
        yield from _normalised(out, section, scores, tasks, matrices)
    yield "<h3>Task by task</h3>"
    stems = distinct(slug(task.task) for task in scores.tasks)
    drawn = [
        figure
        for stem, task in zip(stems, scores.tasks, strict=True)
        for figure in _of_task(out, f"{section.name}-{stem}", section, scores, task, signals)
    ]
    yield page.figures(drawn)
    yield page.paragraph(_BANDS, "soft")
    yield _table(out, section, tables.returns_table(scores))
    costs = tables.cost_table(scores)
    if costs is not None:
        yield _table(out, section, costs)
        yield page.paragraph(_TIME, "soft")


def _of_task(
    out: Path, name: str, section: Section, scores: StudyScores, task: TaskScores, signals: Signals
) -> Iterator[tuple[str, str, str]]:
    """Returns against steps and against processor time, and what the runs tell of themselves while training."""
    dotted = "" if task.random is None else " Dotted: the random policy."
    caption = f"{task.task}: mean return over seeds.{dotted}"
    yield _saved(out, name, figures.task_curves(scores, task), caption)
    if any(cell.cost is not None for cell in task.cells.values()):
        caption = f"{task.task}: the same for processor time.{dotted}"
        yield _saved(out, f"{name}-time", figures.task_curves(scores, task, against_time=True), caption)
    first = [lines[0] for lines in task.by_runs()]
    runs = {line: [run for run in section.lines[line] if run.config.env == task.task] for line in first}
    panels = signals.of_task(runs, int(task.grid[-1]))
    if panels:
        caption = f"{task.task}: {', '.join(panels)} while training, mean over seeds."
        yield _saved(out, f"{name}-training", figures.training_signals(scores, task.task, panels), caption)


def _normalised(
    out: Path, section: Section, scores: StudyScores, tasks: tuple[TaskScores, ...], matrices: dict[str, Array]
) -> Iterator[str]:
    generator = np.random.default_rng(_SEED)
    found = {line: statistics.intervals(matrix, generator) for line, matrix in matrices.items()}
    names = ", ".join(task.task for task in tasks)
    seeds = {line: _seed_range(matrix) for line, matrix in matrices.items()}
    yield f"<h3>Normalised scores over {page.count(len(tasks), 'task')}</h3>"
    count = _seed_range(*matrices.values())
    yield page.paragraph(f"Tasks: {names}; {count} seeds each. {_SCORE} {_INTERVAL}", "soft")
    absent = [line for line in scores.lines if line not in matrices]
    if absent:
        names = ", ".join(scores.names[line] for line in absent)
        yield page.paragraph(f"Without a finished run on each of these tasks, and so not here: {names}.", "missing")
    best, of_best = list(dict.fromkeys(task.baseline_line for task in tasks)), scores.best_sac(tasks)
    rival = scores.names[best[0]] if len(best) == 1 and best[0] is not None else "the best SAC of each task"
    rivals = {
        line: statistics.improvement(matrix, of_best, generator) for line, matrix in matrices.items() if best != [line]
    }
    drawn = [
        ("aggregates", figures.aggregates(scores, found), "Aggregated normalised scores at the end."),
        ("profile", figures.profiles(scores, matrices, generator), "How many runs reach which score."),
    ]
    told = [name for name in statistics.AGGREGATES if name != "median" or len(tasks) > 1]  # of one task, it is the mean
    curves = {name: figures.along_training(scores, tasks, name, generator) for name in told}
    drawn[1:1] = [
        (f"{name.lower()}-along-training", figure, f"{_AGGREGATES[name]}, along training.")
        for name, figure in curves.items()
    ]
    if rivals:
        drawn.insert(
            1,
            (
                "improvement",
                figures.improvements(scores, rivals, rival),
                "How often a run beats one of the best SAC; 0.5: as often as not.",
            ),
        )
    yield page.figures([_saved(out, f"{section.name}-{name}", figure, caption) for name, figure, caption in drawn])
    yield _table(out, section, tables.aggregates_table(scores, found, seeds))
    if rivals:
        yield _table(out, section, tables.improvement_table(scores, rivals, rival))


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
        f"{train_command(run.config)} --out {shlex.quote(run.name)}  # {label}"
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


def _seed_range(*matrices: Array) -> str:
    counts = np.concatenate([np.isfinite(matrix).sum(axis=0) for matrix in matrices])
    return str(counts.min()) if counts.min() == counts.max() else f"{counts.min()}-{counts.max()}"
