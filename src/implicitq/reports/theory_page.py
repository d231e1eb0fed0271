"""What a study of the theory leaves in its folder: figures, the table as CSV, and one self-contained HTML page."""

from __future__ import annotations

import base64
import csv
import html
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from implicitq.reports import page
from implicitq.reports import theory_figures as draw
from implicitq.reports.tables import words_table
from implicitq.runs.layout import slug
from implicitq.theory.complexity import Complexity
from implicitq.theory.study import Row, Study, StudyPlan
from implicitq.types import InputError

_INTRODUCTION = (
    "IQ-DP is the exact form of the agents on a finite MDP: it keeps a policy and a value, and Q is only ever "
    "temperature * ln policy + value. The paper proves what that does, with and without errors; here its claims meet "
    "exact numbers. A gap is what a policy loses against the optimum, at the worst state and action, in the unit of "
    "returns."
)
_VERDICTS = (
    "Verdicts: holds and fails are for numbers that theory bounds exactly; measured is what stands for itself; not "
    "reached is a dash, and its row says why."
)
# part -> its heading, what it is about, and the picture of an MDP: name of its file, function, caption
_PARTS: dict[str, tuple[str, str, tuple[str, Callable[[Study], Any], str] | None]] = {
    "Theorem 1": (
        "Theorem 1: IQ-DP is mirror descent value iteration",
        "IQ-DP has no penalty and no bonus in sight. The theorem says that it is the same as value iteration that is "
        "kept near its previous policy (a KL penalty) and away from certainty (an entropy bonus). Both are run side by "
        "side, with one and the same sequence of noise.",
        ("theorem1", draw.draw_equivalence, "IQ-DP and mirror descent have the same policies and values."),
    ),
    "Theorem 2": (
        "Theorem 2: errors average out",
        "Every step has an error. The theorem bounds what the policy loses by it: with alpha = 1 by the average of all "
        "errors so far, with alpha < 1 by moving averages. Both sides are computed exactly, over {bound_seeds}.",
        ("theorem2", draw.draw_bounds, "The exact gap of the policy stays below the bound."),
    ),
    "Noise": (
        "What noise leaves",
        "The same noise for value iteration and for IQ-DP, ten times as long, mean of {seeds}. Each gap is in the MDP "
        "that the scheme optimises, so only those of value iteration and alpha = 1 are of the same kind.",
        ("averaging", draw.draw_averaging, "KL regularisation averages the errors out."),
    ),
    "Limits": (
        "Limits",
        "Without noise, and so without seeds: as the temperature vanishes, known algorithms come back; with a "
        "temperature, values converge to the regularised optimum.",
        ("limits", draw.draw_limits, "Temperature to zero, and the fixed point."),
    ),
    "Samples": (
        "Samples to a good policy",
        "How many samples per state and action a policy within epsilon of the optimum takes, on ladders of two-armed "
        "states, mean of {sample_seeds}. The paper gives an upper bound that grows with the 2nd power of 1/epsilon and "
        "the 4th of 1/(1 - discount). Measured is the slope between the points at hand. It may be above that of the "
        "bound: a bound limits the number of samples, up to a constant factor, and not how fast that number grows "
        "between points far below it.",
        None,
    ),
}


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
    _write_table(folder / "table.csv", rows)
    versions = {name: metadata.version(name) for name in ("numpy", "scipy", "matplotlib")}
    settings = {"options": dict(options), "versions": versions}
    (folder / "options.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    title = "The theory of implicit Q-values on " + ", ".join(study.name for study in studies)
    parts = [*_head(folder, studies, rows)]
    for part in _PARTS:
        parts += _part(folder, part, [row for row in rows if row.part == part], studies, found)
    text = page.page(title, _facts(studies[0].plan, versions), parts)
    (folder / "index.html").write_text(text, encoding="utf-8")


def number_text(value: float) -> str:
    """Three digits, or a dash where nothing was reached."""
    return "-" if value != value else f"{value:.3g}"  # NaN differs from itself


def reference_text(row: Row) -> str:
    """What a value is held against, e.g. `at most 1`."""
    return "" if row.reference is None else f"{row.meaning} {row.reference:.3g}"


def tally(rows: Sequence[Row]) -> str:
    """How many rows have which verdict, in words."""
    counts = Counter(row.verdict for row in rows)
    checks = counts["holds"] + counts["fails"]
    failed = f", {counts['fails']} fail" if counts["fails"] else ""
    dashes = f"; {counts['not reached']} not reached" if counts["not reached"] else ""
    return f"{counts['holds']} of {checks} checks hold{failed}; {counts['measured']} numbers measured{dashes}."


def _head(folder: Path, studies: Sequence[Study], rows: Sequence[Row]) -> Iterator[str]:
    told = [(heading, slug(part)) for part, (heading, *_) in _PARTS.items() if any(row.part == part for row in rows)]
    yield page.contents(told)
    yield page.paragraph(tally(rows), "verdict")
    yield page.paragraph(_INTRODUCTION)
    yield page.paragraph(_VERDICTS, "soft")
    figure = draw.draw_parametrization(studies[0])
    yield _picture(folder, "parametrization", figure, "What an implicit Q-value is; Fig. 1 of the paper, in numbers.")


def _part(
    folder: Path, part: str, rows: Sequence[Row], studies: Sequence[Study], found: Complexity | None
) -> Iterator[str]:
    if not rows:
        return
    heading, about, picture = _PARTS[part]
    plan = studies[0].plan
    seeds = {
        "seeds": page.count(plan.seeds, "seed"),
        "bound_seeds": page.count(plan.bound_seeds, "seed"),
        "sample_seeds": "" if found is None else page.count(found.seeds, "seed"),
    }
    yield page.heading(heading, slug(part))
    yield page.paragraph(about.format(**seeds))
    yield _rows_table(rows)
    if picture is not None:
        stem, drawn, caption = picture
        for study in studies:
            yield _picture(folder, f"{study.name}-{stem}", drawn(study), f"{study.name}: {caption}")
    elif found is not None:
        caption = "Samples to an epsilon-optimal policy; dotted: the slope of the upper bound."
        yield _picture(folder, "samples", draw.draw_complexity(found), caption)


def _rows_table(rows: Sequence[Row]) -> str:
    cells = [
        (row.mdp, row.quantity, number_text(row.value), reference_text(row), row.verdict, row.sentence) for row in rows
    ]
    return words_table(("MDP", "quantity", "value", "to hold against", "verdict", "in words"), cells)


def _picture(folder: Path, name: str, figure: Any, caption: str) -> str:
    """Saved beside the page, and inside it; wide ones scroll on narrow screens."""
    path = draw.save(figure, folder, name)
    encoded = base64.b64encode(path.read_bytes()).decode("ascii")
    picture = f'<img alt="{html.escape(caption)}" src="data:image/png;base64,{encoded}">'
    below = f"<figcaption>{html.escape(caption)}</figcaption>"
    return f'<figure class="wide"><div class="table">{picture}</div>{below}</figure>'


def _write_table(path: Path, rows: Sequence[Row]) -> None:
    """The rows as CSV, numbers in full precision."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows(row._replace(reference="" if row.reference is None else row.reference) for row in rows)


def _facts(plan: StudyPlan, versions: Mapping[str, str]) -> str:
    """One line on what was run with which versions; how many seeds a part has, it says itself."""
    settings = (
        f"alpha {plan.alpha:g}, temperature {plan.temperature:g}, {plan.iterations} iterations, noise {plan.noise:g}"
    )
    return f"{settings}; {', '.join(f'{name} {version}' for name, version in versions.items())}."
