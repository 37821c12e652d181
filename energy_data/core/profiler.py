"""Measures how a process spends its time. Batches never depend on it."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from typing import NamedTuple, Protocol

# Activities, as users see them.
READING = "reading"
FILTERING = "filters"
ENCODING = "the task encoder, encoding samples"
PACKING = "packing"
COLLATING = "the task encoder, making batches"
SENDING = "moving batches from workers to the trainer"
HELD = "all slots of the arena are held by the trainer, which keeps batches"
STARTING = "starting workers"
OTHER = "the order of samples, and other nodes"

_FIRST_PROBE, _PROBE_EVERY = 8, 128  # blocks; rare enough to cost nothing

Activity = str | tuple[str, str]
"""What time is spent on; READING may come with the id of the leaf."""


class ReadCounter(Protocol):
    """The counters of a source."""

    bytes_read: int | None
    tokens_read: int | None


class ReadAmount(NamedTuple):
    """How much was read; None if the source does not count it."""

    bytes: int | None
    tokens: int | None


class Usage(NamedTuple):
    """Time spent and data read since the last report."""

    seconds: dict[Activity, float]
    read: dict[str, ReadAmount]  # leaf id -> how much


class Profiler:
    """Sums seconds and amounts; one per process, shared by all its nodes."""

    def __init__(self) -> None:
        self.seconds: dict[Activity, float] = {}
        self.total_s = 0.0
        self._read: dict[str, ReadAmount] = {}
        self._watched: set[Hashable] = set()
        # Source -> leaf id, the source, and what it had read when last checked.
        self._sources: dict[int, tuple[str, ReadCounter, ReadAmount]] = {}
        self._blocks = 0

    def add(self, what: Activity, seconds: float) -> None:
        """Add time spent on an activity."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds
        self.total_s += seconds

    def add_rest(self, began: float, total_s: float) -> None:
        """Add the time since `began` that is not yet counted; `total_s` is the total at `began`."""
        self.add(OTHER, time.perf_counter() - began - (self.total_s - total_s))

    def is_probe(self) -> bool:
        """Return whether to read the next block of several leaves leaf by leaf.

        Reading them together is faster, but does not show which leaf is slow.
        """
        self._blocks += 1
        return self._blocks % _PROBE_EVERY == _FIRST_PROBE

    def watch(self, name: Hashable, sources: Iterable[tuple[str, ReadCounter]]) -> None:
        """Count from now on what these (leaf id, source) pairs read. A `name` is watched once."""
        if name not in self._watched:
            self._watched.add(name)
            for leaf, source in sources:
                self._sources.setdefault(id(source), (leaf, source, _amount(source)))

    @property
    def read(self) -> dict[str, ReadAmount]:
        """How much was read of each leaf."""
        self._update()
        return dict(self._read)

    def merge(self, usage: Usage) -> None:
        """Add the usage of another process."""
        for what, seconds in usage.seconds.items():
            self.add(what, seconds)
        for leaf, amount in usage.read.items():
            self._add_read(leaf, amount)

    def flush(self) -> Usage:
        """Return the usage since the last call."""
        self._update()
        usage = Usage(self.seconds, self._read)
        self.seconds, self._read = {}, {}
        return usage

    def _update(self) -> None:
        for key, (leaf, source, before) in self._sources.items():
            now = _amount(source)
            if now != before:
                self._sources[key] = leaf, source, now
                self._add_read(leaf, ReadAmount(_less(now[0], before[0]), _less(now[1], before[1])))

    def _add_read(self, leaf: str, amount: ReadAmount) -> None:
        before = self._read.get(leaf, ReadAmount(None, None))
        self._read[leaf] = ReadAmount(_sum(before[0], amount[0]), _sum(before[1], amount[1]))


def _amount(source: ReadCounter) -> ReadAmount:
    return ReadAmount(source.bytes_read, source.tokens_read)


def _less(now: int | None, before: int | None) -> int | None:
    return None if now is None else now - (before or 0)


def _sum(one: int | None, two: int | None) -> int | None:
    return one if two is None else two if one is None else one + two
