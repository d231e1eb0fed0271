"""What the commands print with."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Console
from rich.table import Table

# In paths and names, [b] and :b: are just that.
console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
error_console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def table(title: str, *columns: str, left: Collection[str] = ()) -> Table:
    """An empty table of numbers; the columns in `left` hold text."""
    made = Table(title=title)
    for column in columns:
        made.add_column(column, justify="left" if column in left else "right")
    return made
