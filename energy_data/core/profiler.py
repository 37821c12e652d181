"""Measures how a process spends its time. Batches never depend on it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple, Protocol

# Activities, as users see them.
READING = "reading"
FETCHING = "waiting for an object store"
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
"""What time is spent on; READING and FETCHING may come with the id of the leaf."""


class ReadCounter(Protocol):
    """The counters of a source."""

    bytes_read: int | None
    tokens_read: int | None


Amounts = Counter[tuple[str, str]]
"""Leaf id and "bytes" or "tokens" -> how many were read of the leaf; or a name in `Fetched`."""


class Fetched(NamedTuple):
    """What it took to have bytes of an object store.

    What was requested counts for who needs it first, also if it was requested ahead.
    """

    fetched_bytes: int = 0
    cached_bytes: int = 0  # that were in the cache, as others needed them before
    requests: int = 0
    retries: int = 0
    seconds: float = 0.0  # waited


class Usage(NamedTuple):
    """Time spent and data read, such as since the last report."""

    seconds: dict[Activity, float]
    read: Amounts


class Profiler:
    """Sums seconds and amounts; one per process, shared by all its nodes."""

    def __init__(self) -> None:
        self.seconds: dict[Activity, float] = {}
        self.total_s = 0.0
        self._read = Amounts()
        self._watched: set[Hashable] = set()
        # Source -> leaf id, the source, and what it had read when last checked.
        self._sources: dict[int, tuple[str, ReadCounter, Amounts]] = {}
        self._blocks = 0

    def add(self, what: Activity, seconds: float) -> None:
        """Add time spent on an activity."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds
        self.total_s += seconds

    def add_fetched(self, leaf: str, found: Fetched) -> None:
        """Add what it took to have bytes of a leaf."""
        self.add((FETCHING, leaf), found.seconds)
        for name, amount in zip(found._fields[:-1], found[:-1], strict=True):
            self._read[leaf, name] += amount

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
                self._sources.setdefault(id(source), (leaf, source, _read_by(leaf, source)))

    @property
    def read(self) -> Amounts:
        """How much was read of each leaf."""
        self._update()
        return self._read.copy()

    @property
    def usage(self) -> Usage:
        """All usage so far."""
        return Usage(self.seconds, self.read)

    def merge(self, usage: Usage) -> None:
        """Add the usage of another process."""
        for what, seconds in usage.seconds.items():
            self.add(what, seconds)
        self._read.update(usage.read)

    def flush(self) -> Usage:
        """Return the usage since the last call."""
        self._update()
        usage = Usage(self.seconds, self._read)
        self.seconds, self._read = {}, Amounts()
        return usage

    def _update(self) -> None:
        for key, (leaf, source, before) in self._sources.items():
            now = _read_by(leaf, source)
            self._sources[key] = leaf, source, now
            self._read.update(now - before)


def _read_by(leaf: str, source: ReadCounter) -> Amounts:
    return Amounts(
        {(leaf, "bytes"): source.bytes_read or 0, (leaf, "tokens"): source.tokens_read or 0}
    )
