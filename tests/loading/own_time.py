"""How long processes take on a machine of their own: tests run beside other programs."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from loading.workers import children, stats

STRETCH_S = 0.5  # long beside what a task is in a queue at a time, which is told at its end


class OwnTime:
    """Seconds that pass for some processes and all below them, without those in a queue for a core.

    Of each stretch of time, as long as that which queued longest did is left out. Who runs and who
    waits for another uses its time up: nothing that hangs hides behind a load.
    """

    def __init__(self, processes: set[int]) -> None:
        self.processes = processes
        self.queued: dict[Path, int] = {}  # task -> nanoseconds in a queue, when last looked at
        self.before = 0.0  # seconds of the stretches that are over
        self.look()
        self.begin()

    def begin(self) -> None:
        self.began, self.at_begin = time.monotonic(), dict(self.queued)

    def look(self) -> None:
        for process in self.processes.union(*map(children, self.processes)):
            with suppress(OSError):  # it has ended
                for task in Path(f"/proc/{process}/task").iterdir():
                    self.queued[task] = int((task / "schedstat").read_text().split()[1])

    def passed(self) -> float:
        """Return the seconds since this was made; look often, or who has ended is counted fully."""
        self.look()
        stretch = time.monotonic() - self.began
        waits = (ns - self.at_begin.get(task, 0) for task, ns in self.queued.items())
        passed = self.before + max(0.0, stretch - max(waits, default=0) / 1e9)
        if stretch > STRETCH_S:
            self.before = passed
            self.begin()
        return passed


def worked_s() -> float:
    """CPU seconds of this process and all below it, with those that have ended and were waited for.

    Unlike seconds on a clock, these are as many beside any load.
    """
    ours = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    below = children()
    ticks = sum(sum(map(int, fields[11:15])) for process, fields in stats() if process in below)
    return sum(used.ru_utime + used.ru_stime for used in ours) + ticks / os.sysconf("SC_CLK_TCK")


def until(
    happens: Callable[[], bool], else_: str, processes: set[int], limit_s: float = 20
) -> None:
    """Wait for what other processes do; they have `limit_s` of their own time for it."""
    clock = OwnTime(processes)
    while not happens():
        assert clock.passed() < limit_s, else_
        time.sleep(0.02)
