"""The head of a report: what was compared, who is ahead on each task and how surely, and what is missing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import numpy as np

from implicitq.reports import page, statistics, tables
from implicitq.reports.reading import Section
from implicitq.reports.scores import NO_SAC, UNMEASURED, StudyScores, TaskScores

_MOST_NAMES = 4  # of lines in a sentence
HOW = (
    "The best line of a task is the one with the highest mean return at the end, given ± its standard error over "
    "seeds. It is ahead of another line where Welch's 95% interval of the difference of their means lies above 0, each "
    "pair by itself. A single seed tells nothing of its own noise."
)


def summary(section: Section, scores: StudyScores) -> Iterator[str]:
    yield f"<h3>{page.link_to(section.name, section.title)}</h3>"
    yield page.paragraph(compared(section, scores))
    if section.same:
        both = "; ".join(scores.names[line] for line in section.same)
        yield page.paragraph(f"Lines that are the same runs are merged into one: {both}.")
    rows = [(task.task, f"{int(task.grid[-1]):,}", *leader(task, scores)) for task in scores.tasks]
    yield tables.words_table(("task", "steps", "best line", "return", "how sure"), rows)
    for text in missing(section, scores):
        yield page.paragraph(text, "missing")


def compared(section: Section, scores: StudyScores) -> str:
    """How many lines, tasks, steps and seeds, and how much of that is there."""
    cells = [cell for task in scores.tasks for cell in task.cells.values()]
    steps = _range(int(task.grid[-1]) for task in scores.tasks)
    seeds = _range(len(cell.seeds) for cell in cells)
    shared = f" All lines share: {', '.join(scores.shared)}." if scores.shared else ""
    return (
        f"{page.count(len(scores.lines), 'line')} on {page.count(len(scores.tasks), 'task')}, {steps} steps, "
        f"{seeds} {'seed' if seeds == '1' else 'seeds'} each: "
        f"{section.planned - len(section.missing)} of {section.planned} planned runs are finished.{shared}"
    )


def leader(task: TaskScores, scores: StudyScores) -> tuple[str, str, str]:
    """The best line of a task, its return, and how sure its lead is."""
    groups = [lines for lines in task.by_runs() if len(task.cells[lines[0]].final)]
    if not groups:
        return "none", "", "no run has reached the end"
    name = {lines[0]: " = ".join(scores.names[line] for line in lines) for lines in groups}
    best, *others = sorted(name, key=lambda line: -float(task.cells[line].final.mean()))
    cell = task.cells[best]
    error = "" if np.isnan(cell.standard_error) else f" ± {cell.standard_error:,.1f}"
    told = f"{cell.final.mean():,.1f}{error} ({page.count(len(cell.final), 'seed')})"
    if not others:
        return name[best], told, "nothing to compare it with"
    if len(cell.final) == 1:
        runner_up = float(task.cells[others[0]].final.mean())
        return name[best], told, f"not known from one seed; next is {name[others[0]]} with {runner_up:,.1f}"
    intervals = {line: statistics.difference(cell.final, task.cells[line].final) for line in others}
    single = [name[line] for line, found in intervals.items() if np.isnan(found.low)]
    level = [name[line] for line, found in intervals.items() if found.low <= 0]
    behind = [name[line] for line, found in intervals.items() if found.low > 0]
    words = [
        f"ahead of {_listed(behind)}" if behind else "",
        f"not told apart from {_listed(level)}" if level else "",
        f"{_listed(single)} {'has' if len(single) == 1 else 'have'} a single seed" if single else "",
    ]
    return name[best], told, "; ".join(filter(None, words))


def missing(section: Section, scores: StudyScores) -> Iterator[str]:
    """Runs, random-policy scores and SAC runs that are not there, with the commands that make them."""
    if section.missing:
        words = (
            "the command of the study goes on with them" if section.command else "implicitq resume goes on with them"
        )
        yield f"{page.count(len(section.missing), 'run')} missing or unfinished; {words}."
    unmeasured = [task.task for task in scores.tasks if task.problem == UNMEASURED]
    if unmeasured:
        words = ["implicitq", "random-scores", str(section.home), "--tasks", *unmeasured]
        yield f"No normalised scores on {', '.join(unmeasured)}: {UNMEASURED}; run: {shlex.join(words)}"
    for task in scores.tasks:
        if task.problem and task.problem != UNMEASURED:
            impossible = any(text.startswith(f"sac on {task.task}: ") for text in section.left_out)
            yield f"No normalised scores on {task.task}: {NO_SAC if impossible else task.problem}."


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_MOST_NAMES])} and {more} more"


def _range(numbers: Iterator[int]) -> str:
    found = sorted(set(numbers))
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"
