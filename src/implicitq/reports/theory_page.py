"""What a study of the theory leaves in its folder: figures, the table as CSV, and one self-contained HTML page."""

from __future__ import annotations

import base64
import csv
import html
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from implicitq.reports import theory_figures as draw
from implicitq.theory.complexity import Complexity
from implicitq.theory.study import Row, Study, StudyPlan
from implicitq.types import InputError

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
img { max-width: 100%; } figure { margin: 1.5rem 0; } figcaption { color: #555; font-size: .9rem; }
table { border-collapse: collapse; font-size: .9rem; }
td, th { padding: .2rem .8rem; border-bottom: 1px solid #ddd; text-align: left; }
 td.number { text-align: right; font-variant-numeric: tabular-nums; }
code { background: #f3f3f3; padding: .1rem .3rem; }
"""


def fresh_folder(out: Path | None) -> Path:
    """`out`, which must be new or empty, or else the next free runs/theory-N; made if need be."""
    if out is None:
        number = 1
        while (folder := Path("runs") / f"theory-{number}").exists():
            number += 1
    else:
        folder = out
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"out must be a new or empty folder, got {folder}, which is not")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_results(
    folder: Path, studies: Sequence[Study], found: Complexity | None, rows: Sequence[Row], options: Mapping[str, Any]
) -> None:
    """Write figures, table.csv, options.json and index.html; `options` are what the user asked for."""
    figures = _draw(folder, studies, found)
    _write_table(folder / "table.csv", rows)
    versions = {name: metadata.version(name) for name in ("numpy", "scipy", "matplotlib")}
    settings = {"options": dict(options), "versions": versions}
    (folder / "options.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    title = "The theory of implicit Q-values on " + ", ".join(study.name for study in studies)
    facts = _facts(studies[0].plan, versions)
    (folder / "index.html").write_text(_page(title, facts, rows, figures), encoding="utf-8")


def number_text(value: float) -> str:
    """Three digits, or a dash where nothing was reached."""
    return "-" if value != value else f"{value:.3g}"  # NaN differs from itself


def reference_text(row: Row) -> str:
    """What a value is held against, e.g. `at most 1`."""
    return "" if row.reference is None else f"{row.meaning} {row.reference:.3g}"


def _draw(folder: Path, studies: Sequence[Study], found: Complexity | None) -> list[tuple[Path, str]]:
    """PNG files and their captions."""
    pictures = []
    for study in studies:
        for kind, figure, caption in (
            ("theorem1", draw.draw_equivalence, "IQ-DP and MD-VI produce the same policies and values."),
            ("theorem2", draw.draw_bounds, "The exact gap of the policy stays below the bound."),
            ("averaging", draw.draw_averaging, "KL regularisation averages the errors out."),
            ("limits", draw.draw_limits, "Temperature to zero, and the fixed point."),
        ):
            path = draw.save(figure(study), folder, f"{study.name}-{kind}")
            pictures.append((path, f"{study.name}: {caption}"))
    if found is not None:
        path = draw.save(draw.draw_complexity(found), folder, "samples")
        pictures.append((path, "Samples to an epsilon-optimal policy; dotted: the slope of the upper bound."))
    return pictures


def _write_table(path: Path, rows: Sequence[Row]) -> None:
    """The rows as CSV, numbers in full precision."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows(row._replace(reference="" if row.reference is None else row.reference) for row in rows)


def _facts(plan: StudyPlan, versions: Mapping[str, str]) -> str:
    """One line on what was run with which versions."""
    settings = (
        f"alpha {plan.alpha:g}, temperature {plan.temperature:g}, {plan.iterations} iterations, "
        f"noise {plan.noise:g}, {plan.seeds} seeds"
    )
    return f"{settings}; {', '.join(f'{name} {version}' for name, version in versions.items())}."


def _page(title: str, facts: str, rows: Sequence[Row], figures: Sequence[tuple[Path, str]]) -> str:
    body = "\n".join(
        f"<tr><td>{html.escape(row.mdp)}</td><td>{html.escape(row.part)}</td>"
        f"<td>{html.escape(row.quantity)}</td>"
        f'<td class="number">{number_text(row.value)}</td><td>{html.escape(reference_text(row))}</td></tr>'
        for row in rows
    )
    pictures = "\n".join(
        f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,{_encoded(file)}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        for file, caption in figures
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>{STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
<p>{html.escape(facts)}</p>
{pictures}
<h2>Numbers</h2>
<table><tr><th>MDP</th><th>part</th><th>quantity</th><th>value</th><th>to hold against</th></tr>
{body}
</table></body></html>
"""


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode("ascii")
