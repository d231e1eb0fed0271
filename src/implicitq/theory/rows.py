"""Lines of the table of a study: a number, what it is held against, a verdict, and a sentence on what it means."""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["holds", "fails", "measured", "not reached"]


class Row(NamedTuple):
    """One line: a quantity, its value, what to hold it against, and how that ends."""

    mdp: str
    part: str
    quantity: str
    value: float
    reference: float | None
    meaning: str  # of the reference
    verdict: Verdict
    sentence: str  # for a reader without the paper


def checked(mdp: str, part: str, quantity: str, value: float, most: float, sentence: str) -> Row:
    """A value that theory keeps at or below `most`."""
    return Row(mdp, part, quantity, value, most, "at most", "holds" if value <= most else "fails", sentence)


def measured(mdp: str, part: str, quantity: str, value: float, sentence: str, reference: float | None = None) -> Row:
    """A value that theory says nothing exact about; `reference` stands beside it. NaN is what was not reached."""
    reached = value == value  # NaN differs from itself
    meaning = "" if reference is None else "the bound's"
    return Row(mdp, part, quantity, value, reference, meaning, "measured" if reached else "not reached", sentence)
