"""Options that several commands have, and the progress bar of what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from energy_data.data.registry import located

if TYPE_CHECKING:
    from rich.progress import Progress

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class DatasetPath(click.Path):
    """A path that exists; a URL becomes the path of its mirror."""

    def __init__(self) -> None:
        super().__init__(exists=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        return super().convert(located(value), param, ctx)


progress_option = click.option(
    "--progress/--no-progress",
    default=True,
    help="Show progress on a terminal.  [default: on]",
)
tmp_option = click.option(
    "--tmp-path",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where index.sqlite is built before it is copied, such as on a local disk.  "
    "[default: PATH]",
)


def workers_option(default: str) -> Decorator:
    """Return the option for the number of processes. default: in words."""
    return click.option(
        "--num-workers",
        type=click.IntRange(min=1),
        metavar="N",
        help=f"Processes.  [default: {default}]",
    )


def part_options(about: str) -> Decorator:
    """Return the options --part and --of, for one part of the shards. about: the help of --part."""
    part = click.option("--part", type=click.IntRange(min=0), metavar="N", help=about)
    of = click.option("--of", type=click.IntRange(min=1), metavar="M", help="Number of parts.")
    return lambda command: part(of(command))


def progress_bar(*, shown: bool) -> Progress:
    """Return a progress bar; it shows on terminals only."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    )


@contextmanager
def counting(shown: bool, what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar in the block; yield what is called with the number done and of all."""
    with progress_bar(shown=shown) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
