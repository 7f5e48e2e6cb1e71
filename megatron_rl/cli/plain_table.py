"""A table for the terminal under a line that says what it shows."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

PIPED_WIDTH = 160
"""Columns where no terminal says how many there are."""


def console() -> Console:
    """Standard output."""
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)


def print_table(out: Console, title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the title on a line of its own, then the rows; long cells fold."""
    out.print(title, style="italic", soft_wrap=True, highlight=False, markup=False)
    table = Table(box=None, pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)
