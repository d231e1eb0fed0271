"""All runs below a folder, in folders of their own and in study tables. Needs no JAX."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from implicitq.runs import branches
from implicitq.runs.layout import TRACES, FoundRun, read_run
from implicitq.runs.study_table import is_table, read_table
from implicitq.types import InputError

REPORT = "report"  # what a report makes, which holds no runs


@dataclass(frozen=True)
class Broken:
    """A folder that should be a run or a study table and cannot be read as one."""

    name: str
    reason: str


@dataclass(frozen=True)
class Found:
    """What was found, by name."""

    runs: tuple[FoundRun, ...]
    broken: tuple[Broken, ...]
    tables: tuple[Path, ...]  # folders with a study table


def walk(root: Path) -> Iterator[tuple[Path, bool]]:
    """Every run folder and study table, and whether it is a table: below a table there may be more, below a run not."""
    for path, folders, files in os.walk(root):
        folder = Path(path)
        if is_table(folder):
            yield folder, True
        elif any(trace in files or trace in folders for trace in TRACES):
            yield folder, False
            folders.clear()
        folders[:] = sorted(each for each in folders if each != REPORT and not each.startswith("."))


def find_runs(root: Path) -> Found:
    """All runs below a folder, and what looks like one but is broken."""
    if not root.is_dir():
        raise InputError(f"{root} is not a folder")
    runs, broken, tables = [], [], []
    for folder, table in walk(root):
        name = os.path.relpath(folder, root)
        try:
            if table:
                runs += [dataclasses.replace(run, name=_below(name, run.name)) for run in read_table(folder)]
                tables.append(folder)
            else:
                told = tuple(branch.told() for branch in branches.read(folder))
                runs.append(dataclasses.replace(read_run(folder, name), branches=told))
        except InputError as error:
            broken.append(Broken(name, str(error)))
    by_name = sorted(runs, key=lambda run: run.name)
    return Found(tuple(by_name), tuple(sorted(broken, key=lambda each: each.name)), tuple(sorted(tables)))


def _below(folder: str, name: str) -> str:
    return os.path.normpath(os.path.join(folder, name))
