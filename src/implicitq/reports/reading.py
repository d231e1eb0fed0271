"""What a report is about: the runs of a folder, by version and study, and what is missing or broken."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from implicitq import configs
from implicitq.runs.layout import Broken, FoundRun, find_runs
from implicitq.sweeps import random_scores
from implicitq.sweeps.studies import PlannedRun, Variant
from implicitq.sweeps.sweep import read_plans
from implicitq.types import InputError

_OF_THE_MACHINE = ("processor", "system", "threads", "python")  # these may differ between runs of one report
_OF_THE_SWEEP = {"algorithm", "env", "seed", "preset", "steps"}
_SCALE = {"steps", "eval_every", "eval_episodes", "checkpoint_every", "log_every", "vectorization"}


@dataclass(frozen=True)
class Section:
    """One study, or the runs that belong to none."""

    name: str  # for files
    title: str
    command: str | None
    lines: Mapping[str, Sequence[FoundRun]]
    planned: int
    missing: tuple[str, ...]  # planned runs without a folder, or unfinished, with how far they are
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Gathered:
    root: Path
    runs: tuple[FoundRun, ...]
    broken: tuple[Broken, ...]
    versions: Mapping[str, Any] | None
    machines: tuple[str, ...]
    sections: tuple[Section, ...]
    random: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...]


def gather(root: Path, version_set: int | None = None) -> Gathered:
    """Read all runs below `root`; runs of several versions are refused unless one set of them is chosen."""
    runs, broken = find_runs(root)
    if not runs:
        detail = f"; {len(broken)} folder(s) are broken, such as {broken[0].name}: {broken[0].reason}" if broken else ""
        raise InputError(f"{root} holds no run with an evaluation{detail}")
    sets = _by_versions(runs)
    notes = []
    if version_set is not None and not 1 <= version_set <= len(sets):
        raise InputError(f"version_set must be from 1 to {len(sets)}, got {version_set}")
    if len(sets) > 1:
        listed = "; ".join(f"{number}: {_tell(key, sets)}" for number, key in enumerate(sets, 1))
        if version_set is None:
            raise InputError(
                f"{root} mixes runs of several versions, which must not be compared; "
                f"choose one with --version-set N ({listed})"
            )
        notes.append(f"Of several versions in this folder only set {version_set} is reported ({listed}).")
    chosen = list(sets.values())[(version_set or 1) - 1]
    versions = chosen[0].versions
    random, problems = _random(root, versions)
    machines = {f"{(r.versions or {}).get('processor')}, {(r.versions or {}).get('threads')} thread(s)" for r in chosen}
    return Gathered(
        root,
        tuple(chosen),
        tuple(broken),
        versions,
        tuple(sorted(machines)) if versions else (),
        tuple(_sections(root, chosen)),
        random,
        (*notes, *problems),
    )


def label_of(run: FoundRun) -> str:
    """What sets a run apart from the defaults of its algorithm on its task."""
    apart = {name: value for name, value in overrides_of(run).items() if name not in _SCALE}
    return Variant(run.config.algorithm, apart).label


def overrides_of(run: FoundRun) -> dict[str, Any]:
    config = run.config
    default = configs.resolve(config.algorithm, config.env, config.preset)
    names = [field.name for field in dataclasses.fields(config)]
    return {
        name: getattr(config, name)
        for name in names
        if (name == "steps" or name not in _OF_THE_SWEEP) and getattr(config, name) != getattr(default, name)
    }


def as_planned(run: FoundRun) -> PlannedRun:
    """The plan that makes this run again."""
    preset = {} if run.config.preset == "paper" else {"preset": run.config.preset}
    overrides = {**preset, **overrides_of(run)}
    return PlannedRun(run.config.algorithm, run.config.env, run.config.seed, run.name, overrides)


def _sections(root: Path, runs: Sequence[FoundRun]) -> list[Section]:
    by_name = {run.name: run for run in runs}
    used: set[str] = set()
    sections = []
    for plan in read_plans(root):
        lines = {
            label: [by_name[folder] for folder in folders if folder in by_name]
            for label, folders in plan["lines"].items()
        }
        used |= {folder for folders in plan["lines"].values() for folder in folders}
        missing = [_missing(entry["folder"], by_name.get(entry["folder"])) for entry in plan["runs"]]
        sections.append(
            Section(
                f"{plan['study']}-{plan['suite']}",
                f"Study {plan['study']} on suite {plan['suite']}",
                plan["command"],
                {label: found for label, found in lines.items() if found},
                len(plan["runs"]),
                tuple(filter(None, missing)),
                tuple(plan["left_out"]),
            )
        )
    others = [run for run in runs if run.name not in used]
    if others:
        sections.append(_unplanned(others, "Other runs" if sections else "All runs"))
    return [section for section in sections if section.lines]


def _unplanned(runs: Sequence[FoundRun], title: str) -> Section:
    grouped: dict[str, list[FoundRun]] = {}
    for run in runs:
        grouped.setdefault(label_of(run), []).append(run)
    missing = [_missing(run.name, run) for run in runs]
    return Section("runs", title, None, dict(sorted(grouped.items())), len(runs), tuple(filter(None, missing)), ())


def _missing(folder: str, run: FoundRun | None) -> str:
    if run is None:
        return f"{folder}: not there"
    return "" if run.finished else f"{folder}: at step {int(run.steps[-1]):,} of {run.config.steps:,}"


def _by_versions(runs: Sequence[FoundRun]) -> dict[tuple, list[FoundRun]]:
    sets: dict[tuple, list[FoundRun]] = {}
    for run in runs:
        known = run.versions or {}
        key = tuple(sorted((k, str(v)) for k, v in known.items() if k not in _OF_THE_MACHINE))
        sets.setdefault(key, []).append(run)
    return sets


def _tell(key: tuple, sets: Mapping[tuple, Sequence[FoundRun]]) -> str:
    """Only the packages in which the sets differ."""
    everywhere = set.intersection(*(set(each) for each in sets))
    apart = ", ".join(f"{name} {version}" for name, version in key if (name, version) not in everywhere)
    return f"{len(sets[key])} run(s) with {apart or 'no versions recorded'}"


def _random(root: Path, versions: Mapping[str, Any] | None) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """Random-policy scores that fit the versions of the runs."""
    good, problems = {}, []
    for task, entry in random_scores.read(root).items():
        apart = [
            f"{name} {entry['versions'].get(name)}, the runs with {version}"
            for name, version in (versions or {}).items()
            if name in random_scores.PACKAGES and entry["versions"].get(name) != version
        ]
        if apart:
            problems.append(f"The random policy on {task} was measured with {'; '.join(apart)}: measure it again.")
        else:
            good[task] = entry
    return good, problems
