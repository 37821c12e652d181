"""Copying a batch into shared memory, in the quickest way.

What is written passes either through the caches of the processor or by them, and in the second case
so may what is read, and a second thread may help. Which takes the least time differs by a factor of
two between processors, versions of libc and sizes, so all are tried, on batches that have to be
copied anyway. Where nothing is compiled there is one way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from mmap import mmap
from typing import Any, NamedTuple, Protocol

from energy_data.data.tar.native import COPY

_FEWEST = 8 << 20  # bytes of a batch; smaller ones stay in the caches, where the trainer finds them
_TOGETHER = 16 << 20  # bytes that are worth starting a thread for
_TRIES = 5  # of each way; the best counts, as the machine may interrupt any of them
_WORTH = 1.5  # how many times as quick a second thread must be: else its core has better to do
_PAUSE, _LONGER = 32, 8  # batches until that is asked again, and how many times more each time

Piece = tuple[int, int, Any]  # begin and end in the memory; a C-contiguous buffer of so many bytes


class Way(Protocol):
    """A way to copy pieces to their places in the memory."""

    def __call__(self, memory: mmap, pieces: Iterable[Piece]) -> None:
        """Copy the pieces, which are looked at once, one after another."""

    def helped(self) -> Way | None:
        """Return this way with a second thread; None if there is none, or no core for it."""


class ThroughCaches(NamedTuple):
    """As Python does it."""

    def __call__(self, memory: mmap, pieces: Iterable[Piece]) -> None:  # noqa: D102
        for begin, end, data in pieces:
            memory[begin:end] = data

    def helped(self) -> Way | None:  # noqa: D102
        return None


class PastCaches(NamedTuple):
    """As `_copy_past.c` does it. is_passing: what is read does not go to all caches either."""

    is_passing: bool
    num_threads: int = 1

    def __call__(self, memory: mmap, pieces: Iterable[Piece]) -> None:  # noqa: D102
        at_once = 1 if self.num_threads == 1 else _TOGETHER
        group: list[Piece] = []
        num_bytes = 0
        for piece in pieces:
            group.append(piece)
            num_bytes += piece[1] - piece[0]
            if num_bytes >= at_once:
                self._copy(memory, group)
                num_bytes = 0
        if group:
            self._copy(memory, group)

    def _copy(self, memory: mmap, group: list[Piece]) -> None:
        """Copy the pieces, and let go of them."""
        assert COPY is not None
        COPY.past_caches(memory, tuple(group), self.is_passing, self.num_threads)
        group.clear()

    def helped(self) -> Way | None:  # noqa: D102
        return self._replace(num_threads=2) if len(os.sched_getaffinity(0)) > 1 else None


_THROUGH = ThroughCaches()
WAYS: list[Way] = [_THROUGH]
if hasattr(COPY, "past_caches"):
    WAYS += [PastCaches(is_passing=False), PastCaches(is_passing=True)]


class Copier:
    """Copies batches, and finds out how; one for each worker."""

    def __init__(
        self, ways: Sequence[Way] = WAYS, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._ways = ways
        self._clock = clock
        self._choices: dict[int, _Choice] = {}  # by size; all up to twice as large are as one

    def copy(
        self, memory: mmap, pieces: Iterable[Piece], num_bytes: int, *, is_fresh: bool = False
    ) -> None:
        """Copy the pieces of a batch, so many bytes, to their places in the memory.

        pieces: looked at once, one after another. is_fresh: whether nothing was ever written there;
        that the system has to find memory takes most of the time then, and is no measure.
        """
        if num_bytes < _FEWEST or is_fresh:
            _THROUGH(memory, pieces)
            return
        choice = self._choices.get(num_bytes.bit_length())
        if choice is None:
            choice = self._choices[num_bytes.bit_length()] = _Choice(self._ways)
        way = choice.way()
        begin = self._clock()
        way(memory, pieces)
        choice.took(way, (self._clock() - begin) / num_bytes)


class _Choice:
    """Finds the quickest way; then, more and more seldom, whether a second thread is worth it.

    Whether there is a core for it may change: the first batches come while the trainer starts too.
    """

    def __init__(self, ways: Sequence[Way]) -> None:
        self._tried: dict[Way, list[float]] = {way: [] for way in ways}  # seconds per byte
        self._alone: Way | None = None  # the quickest of them, once it is known
        self._helped: Way | None = None
        self._best = ways[0]  # of all
        self._left = 0  # batches until some are tried again
        self._pause = 0

    def way(self) -> Way:
        """Return the way to copy the next batch."""
        if self._left:
            return self._best
        return min(self._tried, key=lambda way: len(self._tried[way]))

    def took(self, way: Way, seconds_per_byte: float) -> None:
        """Say how long that way took."""
        if self._left:
            self._left -= 1
            return
        self._tried[way].append(seconds_per_byte)
        if all(len(times) == _TRIES for times in self._tried.values()):
            self._decide()

    def _decide(self) -> None:
        cost = {way: min(times) for way, times in self._tried.items()}
        if self._helped in cost:
            cost[self._helped] *= _WORTH
        self._best = min(cost, key=cost.__getitem__)
        if self._alone is None:
            self._alone = self._best
            helpers = [way.helped() for way in sorted(cost, key=cost.__getitem__)]
            # Of the quickest that has one.
            self._helped = next((helper for helper in helpers if helper is not None), None)
        else:
            self._left = self._pause = self._pause * _LONGER or _PAUSE
        self._tried = {way: [] for way in (self._alone, self._helped) if way is not None}
