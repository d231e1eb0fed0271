"""Ids of environments: their form, and which of them a file may name. Needs no Gymnasium.

Of an id such as `module:Id`, Gymnasium imports the module, which runs its code. A user may ask for that, a file not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from implicitq.types import InputError
from implicitq.validation import brief

_FORM = re.compile(r"(?:(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):)?[^:\s]+")


def check_form(name: str) -> None:
    """Refuse what Gymnasium cannot take apart."""
    if _FORM.fullmatch(name) is None:
        raise InputError(f"an environment is named as Id-v0 or as module:Id-v0, got {brief(name)}")


def module_of(name: str) -> str | None:
    """The module that Gymnasium imports for an id."""
    return name.split(":")[0] if ":" in name else None


def refuse_modules(names: Iterable[str], file: str, remedy: str) -> None:
    """Refuse ids that `file` names if making their environments would import a module; `remedy` allows it."""
    for name in names:
        module = module_of(name)
        if module is not None:
            raise InputError(
                f"{file} names the environment {brief(name)}, which would run the module {brief(module)}; {remedy}"
            )
