"""What a report is about: the runs of a folder, by version and study, and what is missing or broken."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from implicitq.configs import Config
from implicitq.machine import OF_THE_PROCESS, TASK_PACKAGES, unused_packages
from implicitq.reports.labels import BRANCH
from implicitq.runs.finding import Broken, find_runs
from implicitq.runs.layout import FoundRun, slug
from implicitq.runs.settings import ForeignConfig, identity, line_identity
from implicitq.sweeps import random_scores
from implicitq.sweeps.collecting import longer
from implicitq.sweeps.studies import label_of
from implicitq.sweeps.sweep import common_settings, read_plans
from implicitq.types import InputError

Random = Mapping[str, Mapping[str, Any]]  # task -> scores of the random policy

_OF_THE_MACHINE = (*OF_THE_PROCESS, "system", "python")  # these may differ between runs of one report


@dataclass(frozen=True)
class Section:
    """One study, or the runs that belong to none."""

    name: str  # for files
    title: str
    home: Path  # the folder with its plans and random-policy scores
    command: str | None
    lines: Mapping[str, Sequence[FoundRun]]
    same: Mapping[str, Sequence[str]]  # line -> further lines that are the same runs, and are merged into it
    planned: int
    missing: tuple[str, ...]  # planned runs without a folder, or unfinished, with how far they are
    left_out: tuple[str, ...]
    random: Random


@dataclass(frozen=True)
class Gathered:
    root: Path
    runs: tuple[FoundRun, ...]
    broken: tuple[Broken, ...]
    versions: Mapping[str, Any] | None
    foreign_versions: Mapping[str, Mapping[str, Any]]  # of runs that other libraries made, by algorithm
    machines: tuple[str, ...]
    sections: tuple[Section, ...]
    random: Random
    notes: tuple[str, ...]


def gather(root: Path, version_set: int | None = None) -> Gathered:
    """Read all runs below `root`; runs of several versions are refused unless one set of them is chosen."""
    found = find_runs(root)
    if not found.runs:
        broken = [f"{each.name}: {each.reason}" for each in found.broken]
        detail = f"; {len(broken)} folder(s) are broken, such as {broken[0]}" if broken else ""
        raise InputError(f"{root} holds no run with an evaluation{detail}")
    chosen, notes = _choose(root, found.runs, version_set)
    ours = [run for run in chosen if isinstance(run.config, Config)]
    versions = (ours or chosen)[0].versions
    machines = {f"{(r.versions or {}).get('processor')}, {(r.versions or {}).get('threads')} thread(s)" for r in ours}
    runs: list[FoundRun] = []
    sections: list[Section] = []
    random: dict[str, Mapping[str, Any]] = {}
    others = {run.name for run in found.runs} - {run.name for run in chosen}
    for home, at_home in _by_home(root, found.tables, chosen).items():
        once, doubts = _once(at_home)
        measured, problems = _random(dict.fromkeys((root, home)), versions)
        sections += _sections(root, home, once, measured, others)
        runs += once
        random |= measured
        notes += [*problems, *doubts]
    notes += [
        f"{run.name} is a branch: it went on {'; '.join(run.branches)}. Its returns are not what its seed and its "
        "settings alone give."
        for run in runs
        if run.branches
    ]
    stems = distinct(section.name for section in sections)
    sections = [replace(section, name=stem) for section, stem in zip(sections, stems, strict=True)]
    return Gathered(
        root,
        tuple(runs),
        found.broken,
        versions,
        {r.config.algorithm: r.versions for r in runs if isinstance(r.config, ForeignConfig) and r.versions},
        tuple(sorted(machines)) if versions else (),
        tuple(sections),
        random,
        tuple(dict.fromkeys(notes)),
    )


def distinct(stems: Iterable[str]) -> list[str]:
    """Names of files, with a number behind those that are there already: two names may differ only in what a file's
    name cannot have."""
    found: dict[str, None] = {}
    for stem in stems:
        number, name = 1, stem
        while name in found:
            number += 1
            name = f"{stem}-{number}"
        found[name] = None
    return list(found)


def _choose(root: Path, runs: Sequence[FoundRun], version_set: int | None) -> tuple[list[FoundRun], list[str]]:
    """The runs of one set of versions, and what is to be said about it."""
    sets = _by_versions(runs)
    if version_set is not None and not 1 <= version_set <= len(sets):
        raise InputError(f"version_set must be from 1 to {len(sets)}, got {version_set}")
    chosen = list(sets.values())[(version_set or 1) - 1]
    if len(sets) == 1:
        return chosen, []
    listed = "; ".join(f"{number}: {_tell(key, sets)}" for number, key in enumerate(sets, 1))
    if version_set is None:
        raise InputError(
            f"{root} mixes runs of several versions, which must not be compared; "
            f"choose one with --version-set N ({listed})"
        )
    return chosen, [f"Of several versions in this folder only set {version_set} is reported ({listed})."]


def _by_home(root: Path, tables: Sequence[Path], runs: Sequence[FoundRun]) -> dict[Path, list[FoundRun]]:
    """Runs by the folder whose plans and random-policy scores are theirs: the nearest one with a table, or the root."""
    homes: dict[Path, list[FoundRun]] = {root: [], **{table: [] for table in tables}}
    for run in runs:
        home = next((each for each in (run.folder, *run.folder.parents) if each in homes), root)
        homes[home].append(run)
    return {home: found for home, found in homes.items() if found}


def _once(runs: Sequence[FoundRun]) -> tuple[list[FoundRun], list[str]]:
    """Every run once, in its longest version: it may be in a table and also have a folder."""
    found: dict[tuple[str, ...], FoundRun] = {}
    doubts = []
    for run in runs:
        mark = (identity(run.config), *run.branches)
        try:
            found[mark] = longer(found[mark], run) if mark in found else run
        except InputError as error:
            doubts.append(f"{error}; the first of the two counts.")
    return list(found.values()), doubts


def _sections(
    root: Path, home: Path, runs: Sequence[FoundRun], random: Random, of_other_versions: Collection[str]
) -> list[Section]:
    """What was planned in a folder, and all its other runs."""
    where = "" if home == root else home.relative_to(root).as_posix()
    paths = map(Path, of_other_versions)
    elsewhere = {path.relative_to(where).as_posix() for path in paths if path.is_relative_to(where)}
    by_name = {Path(run.name).relative_to(where).as_posix(): run for run in runs}
    plans = read_plans(home)
    sections = [_planned(home, plan, by_name, random, elsewhere) for plan in plans]
    planned = {name for plan in plans for line in plan["lines"].values() for name in line}
    others = {name: run for name, run in by_name.items() if name not in planned}
    sections.append(_others(home, "Other runs" if plans else "All runs", others, plans, random))
    if where:
        sections = [replace(s, name=f"{slug(where)}-{s.name}", title=f"{where}: {s.title}") for s in sections]
    return [section for section in sections if section.lines]


def _planned(
    home: Path, plan: Mapping[str, Any], by_name: Mapping[str, FoundRun], random: Random, elsewhere: Collection[str]
) -> Section:
    names = dict.fromkeys(name for line in plan["lines"].values() for name in line)
    lines = {label: [by_name[name] for name in line if name in by_name] for label, line in plan["lines"].items()}
    merged, same = _merged({label: found for label, found in lines.items() if found})
    return Section(
        f"{plan['study']}-{plan['suite']}",
        f"Study {plan['study']} on suite {plan['suite']}",
        home,
        plan["command"],
        merged,
        same,
        len(names),
        tuple(filter(None, (_missing(name, by_name.get(name), elsewhere) for name in names))),
        tuple(plan["left_out"]),
        random,
    )


def _merged(
    lines: Mapping[str, Sequence[FoundRun]],
) -> tuple[dict[str, Sequence[FoundRun]], dict[str, list[str]]]:
    """Each set of runs under the first of its labels, and the others: two lines that coincide look like one."""
    by_runs: dict[tuple[str, ...], list[str]] = {}
    for label, runs in lines.items():
        by_runs.setdefault(tuple(run.name for run in runs), []).append(label)
    groups = list(by_runs.values())
    return {first: lines[first] for first, *_ in groups}, {first: rest for first, *rest in groups if rest}


def _others(
    home: Path, title: str, by_name: Mapping[str, FoundRun], plans: Sequence[Mapping], random: Random
) -> Section:
    lines: dict[str, list[FoundRun]] = {}
    taken: dict[tuple[str, str], FoundRun] = {}  # the first run of a line on a task
    for name, run in by_name.items():
        label = run.label or label_of(run.config, common_settings(plans, name, run.config.env))
        label = label + BRANCH if run.branches else label
        first = taken.setdefault((label, run.config.env), run)
        seeds = {other.config.seed for other in lines.get(label, ()) if other.config.env == run.config.env}
        if run.config.seed in seeds or line_identity(first.config) != line_identity(run.config):
            label = f"{label} ({name})"  # a seed counts once, and what a label leaves out must not be averaged over
        lines.setdefault(label, []).append(run)
    missing = tuple(filter(None, (_missing(name, run) for name, run in by_name.items())))
    return Section("runs", title, home, None, dict(sorted(lines.items())), {}, len(by_name), missing, (), random)


def _missing(folder: str, run: FoundRun | None, of_other_versions: Collection[str] = ()) -> str:
    if run is None:
        return f"{folder}: {'made with other versions' if folder in of_other_versions else 'not there'}"
    return "" if run.finished else f"{folder}: at step {int(run.steps[-1]):,} of {run.config.steps:,}"


def _by_versions(runs: Sequence[FoundRun]) -> dict[tuple, list[FoundRun]]:
    """Groups of runs that may be compared; those of other libraries need only the same environments.

    Packages that a task does not use do not set its runs apart, nor does one that other tasks come from.
    """
    recorded = [_recorded(run) for run in runs]
    every = set().union(*recorded)
    alike = {name for name in TASK_PACKAGES if sum(name == other for other, _ in every) == 1}
    unused = {env: unused_packages(env) for env in {run.config.env for run in runs}}
    left_out = [alike | unused[run.config.env] for run in runs]
    counted = [{pair for pair in own if pair[0] not in out} for own, out in zip(recorded, left_out, strict=True)]
    sets: dict[tuple, list[FoundRun]] = {}
    # Those that count most packages come first: the others can join them.
    for run, own in sorted(
        zip(runs, counted, strict=True), key=lambda each: (isinstance(each[0].config, ForeignConfig), -len(each[1]))
    ):
        may_lack, needed = unused[run.config.env], own
        if isinstance(run.config, ForeignConfig):
            needed = {pair for pair in own if pair[0] in random_scores.PACKAGES}
            may_lack = {name for name, _ in every}
        joined = [key for key in sets if needed <= set(key) and {name for name, _ in set(key) - needed} <= may_lack]
        for key in joined or [tuple(sorted(own))]:
            sets.setdefault(key, []).append(run)
    return sets


def _recorded(run: FoundRun) -> set[tuple[str, str]]:
    """Packages of a run with their versions."""
    return {(name, str(version)) for name, version in (run.versions or {}).items() if name not in _OF_THE_MACHINE}


def _tell(key: tuple, sets: Mapping[tuple, Sequence[FoundRun]]) -> str:
    """A set of versions in words: only the packages in which the sets differ."""
    everywhere = set.intersection(*(set(each) for each in sets))
    apart = ", ".join(f"{name} {version}" for name, version in key if (name, version) not in everywhere)
    return f"{len(sets[key])} run(s) with {apart or 'no versions recorded'}"


def _random(
    folders: Iterable[Path], versions: Mapping[str, Any] | None
) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """Random-policy scores that fit the versions of the runs; the last folder that has some wins."""
    good, problems = {}, []
    for task, entry in {task: entry for each in folders for task, entry in random_scores.read(each).items()}.items():
        apart = [
            f"{name} {entry['versions'].get(name)}, the runs with {version}"
            for name, version in (versions or {}).items()
            if name in set(random_scores.PACKAGES) - unused_packages(task) and entry["versions"].get(name) != version
        ]
        if apart:
            problems.append(f"The random policy on {task} was measured with {'; '.join(apart)}: measure it again.")
        else:
            good[task] = entry
    return good, problems
