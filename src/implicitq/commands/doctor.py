"""implicitq doctor: what works here, and what to do about what does not."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rich.table import Table

from implicitq.commands.display import console
from implicitq.commands.parsing import parse
from implicitq.compilation import use_cache
from implicitq.doctor import Finding, examine

_SIGNS = {"good": "ok", "missing": "--", "broken": "!!"}


@dataclass(frozen=True)
class Options:
    """Look at this machine and this install: versions, devices, memory, rendering, extras, and a training of 100 steps.

    Says what to do about what is missing. The exit code is 0 if training works, else 1. Paste the output into reports
    of problems: it has no names of machines or users.
    """

    json: bool = False  # Print JSON instead of a table.


def run(arguments: list[str]) -> int:
    options = parse(Options, "doctor", arguments)
    use_cache()
    found = examine()
    good = all(finding.state != "broken" for finding in found)
    if options.json:
        print(json.dumps({"training_works": good, "findings": [asdict(finding) for finding in found]}, indent=2))
        return 0 if good else 1
    console.print(_table(found))
    console.print("training works here" if good else "training does not work here; see the lines with !!", style="bold")
    return 0 if good else 1


def _table(found: list[Finding]) -> Table:
    shown = Table(show_header=False, box=None, pad_edge=False)
    shown.add_column(no_wrap=True)
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    for finding in found:
        shown.add_row(_SIGNS[finding.state], finding.name, finding.told)
        if finding.remedy is not None:
            shown.add_row("", "", f"-> {finding.remedy}")
    return shown
