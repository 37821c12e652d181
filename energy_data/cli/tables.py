"""Tables of the command line."""

from __future__ import annotations

import sys
from collections.abc import Collection

import click
from rich.console import Console, JustifyMethod
from rich.table import Table

LINE_WIDTH = 1_000  # characters in a file or a pipe: ids stay in one piece, to be copied


def new_table(*columns: str, numbers: Collection[str]) -> Table:
    """Return an empty table with these columns; those of `numbers` are never broken."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        is_number = name in numbers
        side: JustifyMethod = "right" if is_number else "left"
        table.add_column(name, justify=side, no_wrap=is_number, overflow="fold")
    return table


def print_table(table: Table) -> None:
    """Print a table; on a terminal, in its width. Ids contain brackets, which are rich's markup."""
    width = None if sys.stdout.isatty() else LINE_WIDTH
    console = Console(markup=False, emoji=False, highlight=False, width=width)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())
