"""What a process spends its time on while it makes batches: for people, nothing depends on it."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from typing import NamedTuple, Protocol

# What time is spent on. People read these.
READING = "reading"
MAPPING = "map functions"
FILTERING = "filters"
ENCODING = "the task encoder, encoding samples"
PACKING = "packing"
COLLATING = "the task encoder, making batches"
SENDING = "moving batches from workers to the trainer"
HELD = "all slots of the arena are held by the trainer, which keeps batches"
STARTING = "starting workers"
OTHER = "the order of samples, and other nodes"

_FIRST_PROBE, _PROBE_EVERY = 8, 128  # blocks; so rarely that it is no cost

Activity = str | tuple[str, str]
"""What time is spent on; of READING perhaps with the id of the leaf."""


class Counts(Protocol):
    """A source, as far as it is counted here."""

    bytes_read: int | None
    tokens_read: int | None


class Amount(NamedTuple):
    """How much was read; None where it is not counted."""

    bytes: int | None
    tokens: int | None


class Spent(NamedTuple):
    """What was spent since the last report."""

    seconds: dict[Activity, float]
    read: dict[str, Amount]  # leaf id -> how much


class Meter:
    """Adds up seconds and amounts; one per process, shared by all nodes in it."""

    def __init__(self) -> None:
        self.seconds: dict[Activity, float] = {}
        self.charged_s = 0.0  # all of them
        self._read: dict[str, Amount] = {}
        self._watched: set[Hashable] = set()
        self._sources: dict[int, tuple[str, Counts, Amount]] = {}  # with what it had read before
        self._blocks = 0

    def charge(self, what: Activity, seconds: float) -> None:
        """Add time."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds
        self.charged_s += seconds

    def charge_rest(self, began: float, charged_s: float) -> None:
        """Add the time since `began` that nobody has charged; `charged_s` is as it was then."""
        self.charge(OTHER, time.perf_counter() - began - (self.charged_s - charged_s))

    def is_probe(self) -> bool:
        """Return whether to read the next block of many leaves leaf by leaf, to see which is slow.

        Read together, they take less time, and do not tell.
        """
        self._blocks += 1
        return self._blocks % _PROBE_EVERY == _FIRST_PROBE

    def watch(self, name: Hashable, sources: Iterable[tuple[str, Counts]]) -> None:
        """Count from now on what these (leaf id, source) read; `name` again is not looked at."""
        if name not in self._watched:
            self._watched.add(name)
            for leaf, source in sources:
                self._sources.setdefault(id(source), (leaf, source, _amount(source)))

    @property
    def read(self) -> dict[str, Amount]:
        """How much was read of each leaf."""
        self._look()
        return dict(self._read)

    def add(self, spent: Spent) -> None:
        """Add what another process has spent."""
        for what, seconds in spent.seconds.items():
            self.charge(what, seconds)
        for leaf, amount in spent.read.items():
            self._add_read(leaf, amount)

    def taken(self) -> Spent:
        """Return what was spent since the last call."""
        self._look()
        spent = Spent(self.seconds, self._read)
        self.seconds, self._read = {}, {}
        return spent

    def _look(self) -> None:
        for key, (leaf, source, before) in self._sources.items():
            now = _amount(source)
            if now != before:
                self._sources[key] = leaf, source, now
                self._add_read(leaf, Amount(_less(now[0], before[0]), _less(now[1], before[1])))

    def _add_read(self, leaf: str, amount: Amount) -> None:
        before = self._read.get(leaf, Amount(None, None))
        self._read[leaf] = Amount(_sum(before[0], amount[0]), _sum(before[1], amount[1]))


def _amount(source: Counts) -> Amount:
    return Amount(source.bytes_read, source.tokens_read)


def _less(now: int | None, before: int | None) -> int | None:
    return None if now is None else now - (before or 0)


def _sum(one: int | None, two: int | None) -> int | None:
    return one if two is None else two if one is None else one + two
