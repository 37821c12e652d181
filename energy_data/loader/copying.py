"""Copying a batch into shared memory, in the quickest of three ways.

What is written passes either through the caches of the processor or by them, and in the second case
so may what is read. Which takes the least time differs by a factor of two between processors,
versions of libc and sizes, so all are tried, on batches that have to be copied anyway. Where
nothing is compiled there is one way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from mmap import mmap
from typing import Any

from energy_data.compiled import COPY

_FEWEST = 8 << 20  # bytes of a batch; smaller ones stay in the caches, where the trainer finds them
_TRIES = 5  # of each way; the best counts, as the machine may interrupt any of them

Piece = tuple[int, int, Any]  # begin and end in the memory; a C-contiguous buffer of so many bytes
Way = Callable[[mmap, Iterable[Piece]], None]


def _through_caches(memory: mmap, pieces: Iterable[Piece]) -> None:
    for begin, end, data in pieces:
        memory[begin:end] = data


_COPY_PAST = getattr(COPY, "past_caches", None)


def _past_caches(is_passing: bool, memory: mmap, pieces: Iterable[Piece]) -> None:
    assert _COPY_PAST is not None
    with memoryview(memory) as view:
        for begin, end, data in pieces:
            _COPY_PAST(view[begin:end], data, is_passing)


WAYS: list[Way] = [_through_caches]
if _COPY_PAST is not None:
    WAYS += [partial(_past_caches, False), partial(_past_caches, True)]


class Copier:
    """Copies batches, and remembers how long it took; one for each worker."""

    def __init__(
        self, ways: Sequence[Way] = WAYS, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._ways = ways
        self._clock = clock
        self._tried: dict[int, list[list[float]]] = {}  # by size, by way: seconds per byte
        self._best: dict[int, Way] = {}  # by size

    def copy(
        self, memory: mmap, pieces: Iterable[Piece], num_bytes: int, *, is_fresh: bool = False
    ) -> None:
        """Copy the pieces of a batch, so many bytes, to their places in the memory.

        pieces: looked at once, one after another. is_fresh: whether nothing was ever written there;
        that the system has to find memory takes most of the time then, and is no measure.
        """
        if num_bytes < _FEWEST or is_fresh:
            _through_caches(memory, pieces)
        elif (best := self._best.get(num_bytes.bit_length())) is not None:
            best(memory, pieces)
        else:
            self._try(memory, pieces, num_bytes)

    def _try(self, memory: mmap, pieces: Iterable[Piece], num_bytes: int) -> None:
        """Copy in the way that was tried less, and decide when each was tried often enough."""
        size = num_bytes.bit_length()  # sizes are judged together between two powers of two
        tried = self._tried.setdefault(size, [[] for _ in self._ways])
        turn = min(range(len(tried)), key=lambda way: len(tried[way]))
        begin = self._clock()
        self._ways[turn](memory, pieces)
        tried[turn].append((self._clock() - begin) / num_bytes)
        if all(len(times) == _TRIES for times in tried):
            self._best[size] = self._ways[min(range(len(tried)), key=lambda way: min(tried[way]))]
            del self._tried[size]
