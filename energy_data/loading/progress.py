"""A progress bar for iterations over a loader."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

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

_SHOW_S, _LOG_S = 0.25, 60.0  # seconds between two updates of the bar, and between two log lines


class ProgressBar:
    """Shows the number of batches, their rate, and what the trainer waits for.

    Where the console is not a terminal, a line is logged once a minute (INFO). Starts no thread,
    because a process that forks must not have one; so nothing changes between two batches.
    """

    def __init__(
        self, starvation: Callable[[], str], total: int | None, console: Console | None
    ) -> None:
        self._starvation, self._total = starvation, total
        self._console = console or Console(stderr=True)
        self._every_s = _SHOW_S if self._console.is_terminal else _LOG_S
        self._bar: Progress | None = None
        self._count = 0
        self._start_s: float | None = None  # None: not shown
        self._last_s = 0.0  # time of the last update

    def __del__(self) -> None:
        """Restore the terminal if the iteration was abandoned."""
        if self._bar is not None:
            self._bar.stop()

    def start(self) -> None:
        """Start to show the bar; idempotent."""
        if self._start_s is not None:
            return
        self._start_s = self._last_s = time.perf_counter()
        self._count = 0
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("batch"),
                MofNCompleteColumn(),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[rate]}/s"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("waits for: {task.fields[starvation]}"),
                console=self._console,
                auto_refresh=False,
            )
            self._bar.add_task("", total=self._total, rate="0", starvation="")
            self._bar.start()

    def advance(self) -> None:
        """Count a batch."""
        self._count += 1
        now = time.perf_counter()
        if now >= self._last_s + self._every_s:
            self._last_s = now
            self._show(now)

    def stop(self) -> None:
        """Show the final numbers and restore the terminal; idempotent."""
        if self._start_s is not None:
            self._show(time.perf_counter())
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._start_s = None

    def _show(self, now: float) -> None:
        rate = self._count / max(now - (self._start_s or 0.0), 1e-9)
        if self._bar is None:
            of = "" if self._total is None else f" of {self._total}"
            log.info("batch %d%s, %.3g/s, waits for: %s", self._count, of, rate, self._starvation())
            return
        (task,) = self._bar.task_ids
        self._bar.update(
            task,
            completed=self._count,
            rate=f"{rate:.3g}",
            starvation=self._starvation(),
            refresh=True,
        )
