"""A study table: the evaluations of many runs in one tidy file, what made them beside it. Needs no JAX.

docs/run-folder.md describes its files. A run is one line's (`algo`) on one task with one seed.
"""

from __future__ import annotations

import csv
import io
import json
import reprlib
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from implicitq.runs import settings
from implicitq.runs.files import LARGEST_STEP, check_name, read_bytes, write_atomically
from implicitq.runs.layout import (
    EVALUATIONS,
    METRICS,
    VERSIONS,
    FoundRun,
    check_curve,
    read_json_file,
    run_name,
    spacing,
)
from implicitq.types import Array, InputError
from implicitq.validation import printable

ABOUT = "about.json"
_CONFIGS = "configs.json"  # earlier versions had a file for each part of ABOUT: this one, versions.json, ...
COLUMNS: tuple[str, ...] = ("algo", "env", "seed", "step", "mean_return", "cpu_seconds")
_RUN_COLUMNS = COLUMNS[:4]
_LONGEST_LABEL = 500

Key = tuple[str, str, int]  # algo, env, seed
Metrics = Mapping[Key, Sequence[Mapping[str, str]]]  # rows, by run


def is_table(folder: Path) -> bool:
    """Whether a folder holds a study table, whole or broken."""
    if (folder / ABOUT).is_file() or (folder / _CONFIGS).is_file():
        return True
    try:
        return stat.S_ISREG((folder / EVALUATIONS).lstat().st_mode) and _begins(folder / EVALUATIONS, b"algo,")
    except OSError:
        return False


def _begins(path: Path, with_bytes: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(with_bytes)) == with_bytes


def key_of(run: FoundRun) -> Key:
    assert run.label is not None
    return run.label, run.config.env, run.config.seed


def read_table(folder: Path) -> list[FoundRun]:
    """All runs of a table, named as a sweep would name their folders; a sentence if it is broken."""
    about = _read_about(folder)
    known = _configs_in(about)
    versions = _versions_in(about)
    runs: list[FoundRun] = []
    names: set[str] = set()
    for key, (steps, means, seconds) in _read_evaluations(folder).items():
        algo, env, seed = key
        if key not in known:
            raise InputError(f"{about.file} has no config of {printable(algo)} on {printable(env)}, seed {seed}")
        try:
            config = settings.from_file({**known[key], "env": env, "seed": seed}, "it", spacing(steps))
        except InputError as error:
            raise InputError(f"{about.file}, {algo} on {env}: {error}") from None
        name = run_name(env, algo, seed)
        if name in names:
            raise InputError(f"two runs would be called {name}: their lines, tasks or seeds are too much alike")
        names.add(name)
        runs.append(FoundRun(folder, name, config, versions.get(key), steps, means, seconds, label=algo))
    return runs


def _read_evaluations(folder: Path) -> dict[Key, tuple[Array, Array, Array]]:
    """Steps, mean returns and processor times of every run."""
    rows: dict[Key, list[tuple[int, float, float]]] = {}
    for number, row in _rows(folder, EVALUATIONS, COLUMNS):
        try:
            values = int(row["step"]), float(row["mean_return"]), float(row["cpu_seconds"] or "nan")
            rows.setdefault((row["algo"], row["env"], int(row["seed"])), []).append(values)
        except ValueError:
            raise InputError(f"{EVALUATIONS} has numbers that are none in line {number}") from None
        if abs(values[0]) > LARGEST_STEP:
            raise InputError(f"{EVALUATIONS} has a step beyond {LARGEST_STEP:,} in line {number}")
    found = {}
    for key, cells in rows.items():
        steps, means, seconds = (np.array(column) for column in zip(*cells, strict=True))
        try:
            check_curve(steps, means)
        except InputError as error:
            raise InputError(f"{error}: {key[0]} on {key[1]}, seed {key[2]}") from None
        found[key] = steps, means, np.where((seconds >= 0) & (seconds <= LARGEST_STEP), seconds, np.nan)
    return found


def read_metrics(folder: Path) -> dict[Key, list[dict[str, str]]]:
    """The metrics of every run that has some, as they are written."""
    found: dict[Key, list[dict[str, str]]] = {}
    if (folder / METRICS).is_file():
        for number, row in _rows(folder, METRICS, _RUN_COLUMNS):
            try:
                seed = int(row["seed"])
                values = {name: value for name, value in row.items() if name not in _RUN_COLUMNS[:3] and value != ""}
                list(map(float, values.values()))
            except ValueError:
                raise InputError(f"{METRICS} has numbers that are none in line {number}") from None
            found.setdefault((row["algo"], row["env"], seed), []).append(values)
    return found


def _rows(folder: Path, name: str, columns: tuple[str, ...]) -> Iterable[tuple[int, dict[str, str]]]:
    """Rows with their line numbers; the header must have these columns, and for evaluations no others."""
    try:
        lines = csv.reader(io.StringIO(read_bytes(folder / name).decode(), newline=""))
        header = next(lines, [])
        if tuple(header if name == EVALUATIONS else header[: len(columns)]) != columns:
            raise InputError(f"{name} must have the columns {', '.join(columns)}, got {reprlib.repr(header)}")
        for column in header:
            check_name(column, f"{name}: a column")
        for row in lines:
            if len(row) != len(header):
                raise InputError(f"{name} has {len(row)} cells instead of {len(header)} in line {lines.line_num}")
            yield lines.line_num, dict(zip(header, row, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        missing = isinstance(error, FileNotFoundError)
        raise InputError(f"it has no {name}" if missing else f"{name} cannot be read: {error}") from None


@dataclass(frozen=True)
class _About:
    """Configs and versions of a table, unchecked."""

    file: str  # that holds the configs
    configs: Any
    versions: Any


def read_extra(folder: Path, name: Literal["random_scores", "plans"]) -> Any:
    """The random policy's scores, or the plans, that a table holds, not checked; None without them.

    None too if the file is broken, which is told where the runs of the table are read.
    """
    try:
        return _read_object(folder).get(name) if (folder / ABOUT).is_file() else None
    except InputError:
        return None


def _read_object(folder: Path) -> dict[str, Any]:
    data = read_json_file(folder, ABOUT)
    if not isinstance(data, dict):
        raise InputError(f"{ABOUT} must have the parts configs, versions, random_scores and plans")
    return data


def _read_about(folder: Path) -> _About:
    if (folder / ABOUT).is_file() or not (folder / _CONFIGS).is_file():
        data = _read_object(folder)
        return _About(ABOUT, data.get("configs"), data.get("versions", []))
    versions = read_json_file(folder, VERSIONS) if (folder / VERSIONS).is_file() else []
    return _About(_CONFIGS, read_json_file(folder, _CONFIGS), versions)


def _configs_in(about: _About) -> dict[Key, dict[str, Any]]:
    found: dict[Key, dict[str, Any]] = {}
    for entry in about.configs if isinstance(about.configs, list) else [None]:
        match entry:
            case {"algo": str(algo), "env": str(env), "seeds": [*seeds], "config": {**config}} if _whole(seeds):
                check_name(algo, f"{about.file}: algo", _LONGEST_LABEL)
                found |= {(algo, env, seed): config for seed in seeds}
            case _:
                raise InputError(f"{about.file}: configs must be a list of entries with algo, env, seeds and config")
    return found


def _whole(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32 for value in values)


def _versions_in(about: _About) -> dict[Key, dict[str, Any]]:
    found: dict[Key, dict[str, Any]] = {}
    try:
        for entry in about.versions:
            versions = dict(entry["versions"])  # one for all its seeds: a small file may name millions
            for algo, envs in entry["runs"].items():
                found |= {(algo, env, seed): versions for env, seeds in envs.items() for seed in seeds}
    except (TypeError, KeyError, AttributeError, ValueError, IndexError):
        file = ABOUT if about.file == ABOUT else VERSIONS
        raise InputError(
            f"{file}: versions must be a list of entries with versions, and runs by algo and env"
        ) from None
    return found


def write_table(
    folder: Path,
    runs: Sequence[FoundRun],
    metrics: Metrics,
    random_scores: Mapping[str, Any],
    plans: Sequence[Mapping[str, Any]],
) -> None:
    """Write all files of a table; runs need labels. The evaluations come last: what they need is there by then."""
    about = {
        "configs": _config_entries(runs),
        "versions": _version_entries(runs),
        "random_scores": random_scores,
        "plans": plans,
    }
    write_atomically(folder / ABOUT, _entry_per_line(about))
    rows = [
        {**dict(zip(_RUN_COLUMNS, key_of(run), strict=False)), **row}
        for run in runs
        for row in metrics.get(key_of(run), ())
    ]
    if rows:
        names = dict.fromkeys(name for row in rows for name in row)
        write_atomically(folder / METRICS, _csv(tuple(names), rows))
    else:
        (folder / METRICS).unlink(missing_ok=True)
    evaluations = [
        dict(zip(COLUMNS, (*key_of(run), *values), strict=True))
        for run in runs
        for values in zip(run.steps.tolist(), run.means.tolist(), run.seconds.tolist(), strict=True)
    ]
    write_atomically(folder / EVALUATIONS, _csv(COLUMNS, evaluations))
    if (folder / _CONFIGS).is_file():  # an earlier version wrote it
        (folder / VERSIONS).unlink(missing_ok=True)
        (folder / _CONFIGS).unlink()


def _config_entries(runs: Sequence[FoundRun]) -> list[dict[str, Any]]:
    """One entry per line, task and config, with its seeds."""
    entries: dict[str, dict[str, Any]] = {}
    for run in runs:
        algo, env, seed = key_of(run)
        config = {k: v for k, v in settings.to_file(run.config).items() if k not in ("env", "seed")}
        entry = {"algo": algo, "env": env, "seeds": [], "config": config}
        entries.setdefault(json.dumps(entry), entry)["seeds"].append(seed)
    return list(entries.values())


def _version_entries(runs: Sequence[FoundRun]) -> list[dict[str, Any]]:
    """Every distinct set of versions, and whose it is."""
    entries: dict[str, dict[str, Any]] = {}
    for run in runs:
        if run.versions is not None:
            algo, env, seed = key_of(run)
            entry = entries.setdefault(json.dumps(run.versions), {"versions": run.versions, "runs": {}})
            entry["runs"].setdefault(algo, {}).setdefault(env, []).append(seed)
    return list(entries.values())


def _entry_per_line(parts: Mapping[str, Sequence[Any] | Mapping[str, Any]]) -> bytes:
    """JSON with one entry of a part per line: a change shows as the lines that it changes."""
    texts = []
    for name, entries in parts.items():
        if isinstance(entries, Mapping):
            begin, end, lines = "{", "}", [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]
        else:
            begin, end, lines = "[", "]", [json.dumps(entry) for entry in entries]
        texts.append("\n".join(filter(None, (f"{json.dumps(name)}: {begin}", ",\n".join(lines), end))))
    return ("{\n" + ",\n".join(texts) + "\n}\n").encode()


def _csv(columns: tuple[str, ...], rows: Iterable[Mapping[str, Any]]) -> bytes:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode()
