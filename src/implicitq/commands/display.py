"""What the commands print with."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from implicitq.validation import printable


class _PlainConsole(Console):
    """In paths and names, [b] and :b: are just that, and what would steer the terminal is a question mark."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """All that is printed as a str comes here, cells of tables too."""
        return super().render_str(printable(text, kept="\n"), **options)


console = _PlainConsole()
error_console = _PlainConsole(stderr=True)


def table(title: str, *columns: str, left: Collection[str] = ()) -> Table:
    """An empty table of numbers; the columns in `left` hold text."""
    made = Table(title=title)
    for column in columns:
        made.add_column(column, justify="left" if column in left else "right")
    return made
