"""Run folders into a study table: one folder of a few small files that a report reads and a sweep goes on from."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from implicitq.runs.files import check_name, read_bytes, refuse_links, turn_in
from implicitq.runs.finding import Broken, Found, find_runs
from implicitq.runs.layout import EVALUATIONS, METRICS, FoundRun, check_log, has_run, run_name
from implicitq.runs.settings import differences, identity, line_identity
from implicitq.runs.study_table import ABOUT, Key, is_table, key_of, read_metrics, read_table, write_table
from implicitq.sweeps import random_scores, sweep
from implicitq.sweeps.studies import label_of
from implicitq.sweeps.suites import Suite
from implicitq.types import InputError

_COUNTS = ("step", "episodes", "updates")  # metrics that stay whole numbers


@dataclass(frozen=True)
class Collected:
    """What a table holds now, and how that came about."""

    runs: tuple[FoundRun, ...]
    new: int  # that were not there before
    extended: int  # that were there, but not as far
    broken: tuple[Broken, ...]  # left out
    without_metrics: tuple[Broken, ...] = ()  # runs whose metrics.csv is damaged, and left out


def collect(source: Path, out: Path, suite: Suite | None = None, metrics: bool = True) -> Collected:
    """Bring all runs below `source` into the study table in `out`, with random-policy scores and plans.

    `suite` is the one that the runs share, for runs that no plan of a sweep in `source` tells of.
    """
    for name in (sweep.PLANS, EVALUATIONS, METRICS, ABOUT, random_scores.FILE):
        refuse_links(out, out / name)
    if has_run(out):
        raise InputError(f"{out} is the folder of a run, whose files a table would replace; choose another")
    found = find_runs(source)
    apart = [run for run in found.runs if run.branches]
    branched = (Broken(run.name, f"a branch, which no seed gives: {'; '.join(run.branches)}") for run in apart)
    whole = tuple(run for run in found.runs if not run.branches)
    found = dataclasses.replace(found, runs=whole, broken=(*found.broken, *branched))
    fresh = [run for run in found.runs if not (run.label and run.folder.resolve() == out.resolve())]
    if not fresh and not _table_in(out):
        detail = f"; {found.broken[0].name} is broken: {found.broken[0].reason}" if found.broken else ""
        raise InputError(f"{source} holds no run with an evaluation{detail}")
    plans = sweep.read_plans(source)
    labelled = [dataclasses.replace(run, label=run.label or _label(run, plans, suite)) for run in fresh]
    with turn_in(out):  # or two at once would each leave out the runs of the other
        before = _table_in(out)
        runs = merge(before, labelled)
        rows, damaged = _metrics(out, before, labelled, runs) if metrics else ({}, [])
        write_table(out, runs, rows, _random_scores(source, out, found), _plans(plans, out, labelled, runs))
        sweep.remove_plans(out)
        (out / random_scores.FILE).unlink(missing_ok=True)
    lengths = {identity(run.config): int(run.steps[-1]) for run in before}
    now = {identity(run.config): int(run.steps[-1]) for run in runs}
    extended = sum(now[mark] > length for mark, length in lengths.items())
    return Collected(tuple(runs), len(runs) - len(before), extended, found.broken, tuple(damaged))


def merge(known: Sequence[FoundRun], more: Sequence[FoundRun]) -> list[FoundRun]:
    """The runs of a table and further ones, all with labels; of two copies of a run the longer one.

    A run with the settings of a known line belongs to that line, whatever it is called itself. The same run with
    other returns is refused, and so are different settings under one name.
    """
    found: dict[str, FoundRun] = {}
    labels: dict[str, str] = {}
    for run in (*known, *more):
        label = labels.setdefault(line_identity(run.config), run.label or "")
        mark = identity(run.config)
        longest = longer(found[mark], run) if mark in found else run
        found[mark] = dataclasses.replace(longest, label=label)
    by_line: dict[tuple[str, str], FoundRun] = {}
    by_name: dict[str, FoundRun] = {}  # two labels may differ only in what the name of a folder cannot have
    for run in found.values():
        name = run_name(run.config.env, key_of(run)[0], run.config.seed)
        first, twin = by_line.setdefault(key_of(run)[:2], run), by_name.setdefault(name, run)
        if line_identity(first.config) != line_identity(run.config):
            _refuse_name(first, run)
        if twin is not run:
            _refuse_name(twin, run)
    return sorted(found.values(), key=key_of)


def longer(one: FoundRun, other: FoundRun) -> FoundRun:
    """The copy of a run that went further, or else has more clocks; refused if their returns differ."""
    both, at, there = np.intersect1d(one.steps, other.steps, return_indices=True)
    apart = np.flatnonzero(one.means[at] != other.means[there])
    if len(apart):
        step, here, beside = (values[apart[0]] for values in (both, one.means[at], other.means[there]))
        raise InputError(f"{other.name} is there twice, with different returns: {here:g} and {beside:g} at step {step}")
    return max(one, other, key=lambda run: (int(run.steps[-1]), int(np.isfinite(run.seconds).sum())))


def metrics_of_run(run: FoundRun) -> list[dict[str, str]]:
    """The rows of a run folder's metrics.csv at its evaluations, in 6 significant digits; none if it has no such file.

    An evaluation between two rows has the one before it.
    """
    check_log(run.folder, METRICS)
    try:
        text = read_bytes(run.folder / METRICS).decode()
        text = text[: text.rfind("\n") + 1]  # the last row may be half-written
        rows = [row for row in csv.DictReader(io.StringIO(text, newline="")) if None not in (*row, *row.values())]
        for column in rows[0] if rows else ():
            check_name(column, f"{METRICS}: a column")
        last = np.searchsorted([int(row["step"]) for row in rows], run.steps, side="right") - 1
        kept = [rows[number] for number in dict.fromkeys(last.tolist()) if number >= 0]
        return [{k: str(int(v)) if k in _COUNTS else f"{float(v):.6g}" for k, v in row.items()} for row in kept]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, OverflowError, csv.Error) as error:
        raise InputError(f"{METRICS} cannot be read: {error}") from None


def _refuse_name(there: FoundRun, run: FoundRun) -> None:
    apart = differences(there.config, run.config, f"in {run.name}")
    algo, env, seed = key_of(run)
    raise InputError(f"two different runs would be called {algo} on {env}, seed {seed}: {apart}")


def _table_in(out: Path) -> list[FoundRun]:
    try:
        return read_table(out) if is_table(out) else []
    except InputError as error:
        raise InputError(f"the study table in {out} is broken: {error}") from None


def _label(run: FoundRun, plans: Sequence[dict[str, Any]], suite: Suite | None) -> str:
    told = sweep.common_settings(plans, run.name, run.config.env)
    return label_of(run.config, suite.settings_on(run.config.env) if told is None and suite is not None else told)


def _metrics(
    out: Path, before: Sequence[FoundRun], fresh: Sequence[FoundRun], runs: Sequence[FoundRun]
) -> tuple[dict[Key, list[dict[str, str]]], list[Broken]]:
    """Metrics of every run, from its longest version that has some; and the runs whose metrics are damaged."""
    tables = {folder: read_metrics(folder) for folder in {out, *(run.folder for run in fresh if is_table(run.folder))}}
    by_mark: dict[str, list[FoundRun]] = {}
    for run in (*before, *fresh):
        by_mark.setdefault(identity(run.config), []).append(run)
    found: dict[Key, list[dict[str, str]]] = {}
    damaged = []
    for run in runs:
        versions = sorted(by_mark[identity(run.config)], key=lambda each: -int(each.steps[-1]))
        for each in versions:
            try:
                rows = tables[each.folder].get(key_of(each), []) if each.folder in tables else metrics_of_run(each)
            except InputError as error:
                damaged.append(Broken(each.name, str(error)))
                continue
            if rows:
                found[key_of(run)] = rows
                break
    return found, damaged


def _random_scores(source: Path, out: Path, found: Found) -> dict[str, Any]:
    """Scores of the random policy; those of the source and its tables win over those in `out`: they fit newer runs."""
    measured = [random_scores.read(folder) for folder in (out, *found.tables, source)]
    return {task: entry for scores in measured for task, entry in scores.items()}


def _plans(
    plans: Sequence[dict[str, Any]], out: Path, fresh: Sequence[FoundRun], runs: Sequence[FoundRun]
) -> list[dict[str, Any]]:
    """The plans that are there and those of the source, with the runs called as they are in the table."""
    called = {identity(run.config): run_name(run.config.env, key_of(run)[0], run.config.seed) for run in runs}
    names = {run.name: called[identity(run.config)] for run in fresh}
    found = {(plan["study"], plan["suite"]): plan for plan in sweep.read_plans(out)}
    for plan in plans:
        lines = {label: [names.get(name, name) for name in folders] for label, folders in plan["lines"].items()}
        slim = {name: value for name, value in plan.items() if name != "runs"}
        found[plan["study"], plan["suite"]] = {**slim, "lines": lines}
    return [plan for _, plan in sorted(found.items())]
