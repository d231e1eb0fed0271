"""The table as CSV, and one self-contained HTML page with every figure inside."""

from __future__ import annotations

import base64
import csv
import html
from collections.abc import Sequence
from pathlib import Path

from implicitq.theory.study import Row

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
img { max-width: 100%; } figure { margin: 1.5rem 0; } figcaption { color: #555; font-size: .9rem; }
table { border-collapse: collapse; font-size: .9rem; }
td, th { padding: .2rem .8rem; border-bottom: 1px solid #ddd; text-align: left; }
 td.number { text-align: right; font-variant-numeric: tabular-nums; }
code { background: #f3f3f3; padding: .1rem .3rem; }
"""


def write_table(rows: Sequence[Row], path: Path) -> None:
    """The rows as CSV, numbers in full precision."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows(row._replace(reference="" if row.reference is None else row.reference) for row in rows)


def number_text(value: float) -> str:
    """Three digits, or a dash where nothing was reached."""
    return "-" if value != value else f"{value:.3g}"  # NaN differs from itself


def reference_text(row: Row) -> str:
    """What a value is held against, e.g. `at most 1`."""
    return "" if row.reference is None else f"{row.meaning} {row.reference:.3g}"


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode("ascii")


def write_page(path: Path, *, title: str, facts: str, rows: Sequence[Row], figures: Sequence[tuple[Path, str]]) -> None:
    """`facts` is one line on what was run with which versions; `figures` are PNG files and captions."""
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
    path.write_text(
        f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>{STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
<p>{html.escape(facts)}</p>
{pictures}
<h2>Numbers</h2>
<table><tr><th>MDP</th><th>part</th><th>quantity</th><th>value</th><th>to hold against</th></tr>
{body}
</table></body></html>
""",
        encoding="utf-8",
    )
