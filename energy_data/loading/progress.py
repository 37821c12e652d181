"""A bar for long iterations."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

log = logging.getLogger(__name__)

_SHOW_S, _LOG_S = 0.25, 60.0  # seconds between two looks at the bar, and two lines in the log

T = TypeVar("T")


def with_progress(
    batches: Iterator[T],
    starvation: Callable[[], str],
    total: int | None,
    console: Console | None,
) -> Iterator[T]:
    """Give `batches`, and show how many there were, how fast, and what holds them up.

    Nothing is shown while the consumer works on a batch: no thread, which a fork would break.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield from _logged(batches, starvation, total)
        return
    columns = (
        TextColumn("batch"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[rate]}/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("waits for: {task.fields[starvation]}"),
    )
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=total, rate="0", starvation="")
        for count, rate, batch in _counted(batches, _SHOW_S):
            if rate is not None:
                progress.update(
                    task, completed=count, rate=f"{rate:.3g}", starvation=starvation(), refresh=True
                )
            if batch:
                yield batch.pop()


def _logged(batches: Iterator[T], starvation: Callable[[], str], total: int | None) -> Iterator[T]:
    for count, rate, batch in _counted(batches, _LOG_S):
        if rate is not None:
            of = "" if total is None else f" of {total}"
            log.info("batch %d%s, %.3g/s, waits for: %s", count, of, rate, starvation())
        if batch:
            yield batch.pop()


def _counted(batches: Iterator[T], every_s: float) -> Iterator[tuple[int, float | None, list[T]]]:
    """Yield how many batches there were, batches per second if it is time to tell, and the batch.

    The last one tells, and has none.
    """
    began = told = time.perf_counter()
    count = 0
    for batch in batches:
        count += 1
        now = time.perf_counter()
        due = now >= told + every_s
        if due:
            told = now
        yield count, count / (now - began) if due else None, [batch]
        del batch  # its slot is free once the consumer lets it go, who took it out of the list
    yield count, count / max(time.perf_counter() - began, 1e-9), []
