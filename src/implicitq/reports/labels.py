"""What figures and tables call the lines of a study: words, where files keep `algorithm name=value`. Needs no JAX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from implicitq.configs import ALGORITHMS
from implicitq.sweeps.studies import UNIQUE

BRANCH = " branch"  # ends the label of a line that went on with other settings
_ENDINGS = {UNIQUE: "unique parameters", BRANCH: "branch"}
_LABEL = re.compile(r"(?P<algorithm>\S+)(?P<settings>( [a-z][a-z0-9_]*=\S+)*)")
_TRUTHS = {"True": "{}", "False": "no {}", "None": "no {}"}


def in_words(labels: Iterable[str], same: Mapping[str, Iterable[str]]) -> tuple[dict[str, str], tuple[str, ...]]:
    """A name for every label, and the settings that all of them share, which the names leave out.

    `same` has, for a label, the others whose runs are the same.
    """
    parts = {label: _parts(label) for label in dict.fromkeys((*labels, *(x for rest in same.values() for x in rest)))}
    shared = _shared(list(parts.values()))
    names = {label: _name(*each, shared) for label, each in parts.items()}
    if len(set(names.values())) < len(names):  # two labels must not become one name
        names = {label: label for label in names}
        shared = {}
    merged = {label: " = ".join([names[label], *(names[other] for other in same.get(label, ()))]) for label in labels}
    return merged, tuple(_setting(name, value) for name, value in shared.items())


def _parts(label: str) -> tuple[str, dict[str, str], str]:
    """The algorithm, its settings, and what its ending says; a label of another form is all algorithm."""
    ending = next((each for each in _ENDINGS if label.endswith(each)), "")
    found = _LABEL.fullmatch(label.removesuffix(ending))
    if found is None or found["algorithm"] not in ALGORITHMS:
        return label, {}, ""
    settings = dict(setting.split("=", 1) for setting in found["settings"].split())
    return found["algorithm"], settings, _ENDINGS.get(ending, "")


def _shared(parts: list[tuple[str, dict[str, str], str]]) -> dict[str, str]:
    first = parts[0][1] if len(parts) > 1 else {}  # a line by itself keeps all of its name
    return {name: value for name, value in first.items() if all(each[1].get(name) == value for each in parts)}


def _name(algorithm: str, settings: Mapping[str, str], ending: str, shared: Mapping[str, str]) -> str:
    told = [_setting(name, value) for name, value in settings.items() if name not in shared]
    words = ", ".join(filter(None, [*told, ending]))
    return f"{algorithm} ({words})" if words else algorithm


def _setting(name: str, value: str) -> str:
    words = name.replace("_", " ")
    return _TRUTHS[value].format(words) if value in _TRUTHS else f"{words} {value}"
