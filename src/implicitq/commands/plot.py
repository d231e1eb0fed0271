"""implicitq plot: what is worth watching of runs, in one picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from implicitq.commands.display import console
from implicitq.commands.parsing import parse
from implicitq.types import InputError

_FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True)
class Options:
    """Draw training return, evaluations, loss, value, entropy and temperature over environment steps.

    Takes run folders, finished or not, and folders with runs below them; all are drawn in the same panels.
    """

    folders: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="DIR ...")]  # Run folders.
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("plot.png")  # A .png, .svg or .pdf file.


def run(arguments: list[str]) -> int:
    options = parse(Options, "plot", arguments)
    form = options.out.suffix.removeprefix(".").lower()
    if form not in _FORMATS:
        raise InputError(f"the picture must end in .png, .svg or .pdf, got {options.out.name}")
    if not options.folders:
        raise InputError("plot needs at least one run folder: implicitq plot DIR...")

    from implicitq.runs.curve import overview, read_curves
    from implicitq.runs.files import write_atomically

    found = read_curves(options.folders)
    write_atomically(options.out, overview(found, form))
    console.print(f"{options.out}: {len(found)} run(s)")
    return 0
