"""Tables of the report: one description, written as CSV, LaTeX, Markdown and HTML."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from implicitq.reports.scores import Standing, StudyScores
from implicitq.reports.statistics import AGGREGATES, Interval
from implicitq.runs.layout import slug

Value = str | float | int | None

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "<": "$<$",
        ">": "$>$",
        **{special: f"\\{special}" for special in "_%&#${}"},
    }
)


@dataclass(frozen=True)
class DataTable:
    """CSV takes the plain values; the others take `shown`, which joins a mean and its spread in one cell."""

    name: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    shown_header: tuple[str, ...]
    shown: tuple[tuple[str, ...], ...]

    def to_csv(self) -> str:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(map(_cell, row) for row in self.rows)
        return buffer.getvalue()

    def to_latex(self) -> str:
        lines = [
            r"\begin{table}",
            rf"\caption{{{_latex(self.caption)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(self.shown_header) - 1)}}}",
            r"\hline",
            " & ".join(map(_latex, self.shown_header)) + r" \\",
            r"\hline",
            *(" & ".join(map(_latex, row)) + r" \\" for row in self.shown),
            r"\hline",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def to_markdown(self) -> str:
        rule = ("---", *["---:"] * (len(self.shown_header) - 1))
        rows = [tuple(map(_markdown, row)) for row in (self.shown_header, *self.shown)]
        return "".join(f"| {' | '.join(row)} |\n" for row in (rows[0], rule, *rows[1:]))

    def to_html(self) -> str:
        return html_table(self.caption, self.shown_header, self.shown)


def html_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of numbers in a box that scrolls by itself on narrow screens."""
    head = "".join(f"<th scope=col>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>"
        + "".join(f"<{tag}>{html.escape(cell)}</{tag[:2]}>" for tag, cell in zip(_tags(row), row, strict=True))
        + "</tr>"
        for row in rows
    )
    box = f'<div class="table" role="region" tabindex="0" aria-label="{html.escape(caption)}">'
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<p class="caption">{html.escape(caption)}</p>{box}{table}</div>'


def words_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of words; on narrow screens every row is a block of `name: text`. A verdict is of the class it names."""
    head = "".join(f"<th scope=col>{html.escape(name)}</th>" for name in header)
    body = ""
    for first, *rest in rows:
        body += f"<tr><th scope=row>{html.escape(first)}</th>"
        for name, cell in zip(header[1:], rest, strict=True):
            kind = f' class="{slug(cell)}"' if name == "verdict" else ""
            body += f'<td{kind} data-name="{html.escape(name)}">{html.escape(cell)}</td>'
        body += "</tr>"
    return f"<table class=words><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _tags(row: Sequence[str]) -> list[str]:
    return ["th scope=row", *["td"] * (len(row) - 1)]


def returns_table(scores: StudyScores) -> DataTable:
    """Mean and standard deviation over seeds at the end, per line and task."""
    rows, shown = [], []
    for line in scores.lines:
        texts = [scores.names[line]]
        for task in scores.tasks:
            cell = task.cells.get(line)
            final = np.zeros(0) if cell is None else cell.final
            planned = 0 if cell is None else len(cell.seeds)
            mean, std = (float(final.mean()), cell.spread) if cell is not None and len(final) else (None, None)
            score = None if mean is None or task.problem else float(task.normalised(np.array(mean)))
            rows.append((line, task.task, int(task.grid[-1]), len(final), planned, mean, std, score))
            spread = "" if std is None else f" ± {std:,.1f}"
            texts.append("" if mean is None else f"{mean:,.1f}{spread} ({len(final)})")
        shown.append(tuple(texts))
    reference = ["not measured" if task.random is None else f"{task.random:,.1f}" for task in scores.tasks]
    shown.append(("random policy", *reference))
    return DataTable(
        "returns",
        "Undiscounted return at the end of training: mean ± standard deviation over seeds (number of finished seeds); "
        "a single seed has no spread",
        ("line", "task", "steps", "finished_seeds", "seeds", "mean_return", "std_over_seeds", "normalised_mean"),
        tuple(rows),
        ("line", *(f"{task.task}, {int(task.grid[-1]):,} steps" for task in scores.tasks)),
        tuple(shown),
    )


def cost_table(scores: StudyScores) -> DataTable | None:
    """What every line costs on every task with scores, and what SAC does for as much; None if there are no clocks."""
    found = {(task.task, line): task.standing(line) for task in scores.scored for line in scores.lines}
    known = {key: standing for key, standing in found.items() if standing is not None}
    if not known:
        return None
    rows: list[tuple[Value, ...]] = [(*key, *standing) for key, standing in known.items()]
    shown = [(task, scores.names[line], *_shown_standing(standing)) for (task, line), standing in known.items()]
    tasks = len(scores.scored)
    for line in scores.lines:
        pairs = [(each.score, each.score_at_equal_time) for (_, name), each in known.items() if name == line]
        if len(pairs) == tasks > 1:
            means = [_mean(column) for column in zip(*pairs, strict=True)]
            rows.append((f"mean of {tasks} tasks", line, *[None] * 5, *means))
            shown.append((f"mean of {tasks} tasks", scores.names[line], *[""] * 4, *map(_percent, means)))
    return DataTable(
        "cost",
        "Return at the end (mean ± standard error over seeds), processor time of a run, distance to the best SAC in "
        "standard errors of the difference, and scores relative to SAC at the same steps and the same processor time",
        ("task", "line", *Standing._fields),
        tuple(rows),
        ("task", "line", "seeds", "return", "processor time", "above SAC", "score", "at equal processor time"),
        tuple(shown),
    )


def _shown_standing(standing: Standing) -> tuple[str, ...]:
    error = "" if standing.standard_error is None else f" ± {standing.standard_error:,.0f}"
    above = "" if standing.errors_above_sac is None else f"{standing.errors_above_sac:+.1f}"
    result = (str(standing.seeds), f"{standing.mean_return:,.0f}{error}", f"{standing.cpu_seconds:,.0f} s", above)
    return (*result, _percent(standing.score), _percent(standing.score_at_equal_time))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def aggregates_table(scores: StudyScores, found: dict[str, dict[str, Interval]], seeds: dict[str, str]) -> DataTable:
    rows = [
        (line, name, *_values(interval), seeds[line])
        for line, intervals in found.items()
        for name, interval in intervals.items()
    ]
    shown = [
        (scores.names[line], *(_shown_interval(interval, 3) for interval in intervals.values()), seeds[line])
        for line, intervals in found.items()
    ]
    return DataTable(
        "aggregates",
        "Normalised scores (random 0, best SAC 1) over all tasks, with 95% bootstrap intervals over seeds",
        ("line", "aggregate", "score", "low", "high", "seeds_per_task"),
        tuple(rows),
        ("line", *AGGREGATES, "seeds per task"),
        tuple(shown),
    )


def improvement_table(scores: StudyScores, found: dict[str, Interval], rival: str) -> DataTable:
    caption = f"Probability that a run beats one of {rival} on the same task, with 95% bootstrap intervals over seeds"
    return DataTable(
        "improvement",
        caption,
        ("line", "over", "probability", "low", "high"),
        tuple((line, rival, *_values(interval)) for line, interval in found.items()),
        ("line", f"chance to beat {rival}"),
        tuple((scores.names[line], _shown_interval(interval, 2)) for line, interval in found.items()),
    )


def _values(interval: Interval) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else value for value in interval)


def _shown_interval(interval: Interval, digits: int) -> str:
    """The interval as text; without bounds where a single seed leaves them open."""
    value, low, high = (f"{each:.{digits}f}" for each in interval)
    return value if math.isnan(interval.low) else f"{value} [{low}, {high}]"


def _cell(value: Value) -> str | float | int:
    """A cell of a CSV file; a text that a spreadsheet would take for a formula gets an apostrophe in front."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return "" if value is None else value


def _markdown(text: str) -> str:
    """One cell: no end of it, no code, no tag and no link but those of the table."""
    return re.sub(r"([\\`|<]|\](?=\())", r"\\\1", " ".join(text.split()))


def _latex(text: str) -> str:
    return " ".join(text.split()).translate(_LATEX)
