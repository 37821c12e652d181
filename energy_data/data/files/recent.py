"""What was decoded last, in memory: groups of tables, chunks that are compressed.

    columns = RECENT.get((path, version, group), decode)
    data = RECENT.piece((path, version), 3, decode_pieces)

It is bounded in bytes, for all files of a thread together.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from energy_data.errors import DataError

log = logging.getLogger(__name__)

LARGEST = 1 << 28  # bytes that a thread keeps; at least two results
MOST_IN_USE = 1 << 30  # bytes that it keeps if all are in use, with those that decode pieces
_UNUSED = 1000  # calls, times the results in use, after which one is not in use any more
_PASSED = 8  # pieces before one that is read, which are kept

T = TypeVar("T")
Make = Callable[[], tuple[T, int]]
"""Returns a result, and its bytes."""
Decode = Callable[[], tuple[Iterator[Make[T]], int]]
"""Returns an iterator of what makes each piece, from the first on, and the bytes that it holds."""


@dataclass(slots=True)
class _Kept:
    result: Any
    size: int
    got: int  # number of the call that got it last
    used: int = 0  # how much of it was used


class _PieceReader:
    """Pieces of something that is decoded from its first piece on."""

    def __init__(self, of: Hashable, size: int, pieces: Iterator[Make[Any]]) -> None:
        self.of, self.size = of, size
        self.next = 0  # number of the piece that comes next
        self.got = 0  # number of the call that read it last
        self._pieces = pieces

    def read(self) -> Make[Any]:
        piece = next(self._pieces)
        self.next += 1
        return piece


class _Recent(threading.local):
    """Results by what they depend on, of each thread its own: a forked process inherits no lock."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()  # the first is forgotten first
        self._in_use: OrderedDict[Hashable, _Kept] = OrderedDict()  # after all of those
        self._readers: list[_PieceReader] = []  # the first is dropped first
        self._bytes = self._calls = 0
        self._has_warned = False
        self.num_made = 0  # for tests that count

    def get(self, key: Hashable, make: Make[T]) -> T:
        """Return the result of a key. make: returns it, if it is not kept.

        key: what the result depends on, with the version of each file.
        """
        self._calls += 1
        for kept in (self._in_use, self._kept):
            if (found := kept.get(key)) is not None:
                kept.move_to_end(key)
                found.got = self._calls
                result: T = found.result
                return result
        made = make()
        self._keep(key, *made)
        return made[0]

    def piece(self, of: Hashable, number: int, count: int, decode: Decode[T]) -> T:
        """Return the result of (of, number), a piece of what is decoded from its begin on.

        It is decoded from the nearest piece on that was read before. A lane reads pieces in their
        order, so each is decoded once. count: of all pieces.
        """
        found: T = self.get((of, number), lambda: self._read(of, number, count, decode))
        return found

    def use(self, key: Hashable, amount: int, whole: int) -> None:
        """Note how much of a result was used, of all there is: the rest is used soon.

        When all was used, it is forgotten before others, as it is not needed for a long time. Of
        such results the last one is forgotten first. So if all are needed again in turn, some are
        still there.
        """
        if (found := self._kept.pop(key, None)) is not None:
            self._in_use[key] = found
        elif (found := self._in_use.get(key)) is None:
            return
        found.used += amount
        if found.used >= whole:
            self._end_use(key)

    def clear(self) -> None:
        """Forget all results."""
        self._kept.clear()
        self._in_use.clear()
        self._readers.clear()
        self._bytes = 0

    def _read(self, of: Hashable, number: int, count: int, decode: Decode[T]) -> tuple[T, int]:
        before = [one for one in self._readers if one.of == of and one.next <= number]
        reader = max(before, key=lambda one: one.next, default=None)
        if reader is None:
            pieces, size = decode()
            reader = _PieceReader(of, size, pieces)
        else:
            self._readers.remove(reader)
            self._bytes -= reader.size
        while (passed := reader.next) < number:
            make_passed = reader.read()
            if number - passed <= _PASSED and not self._has((of, passed)):  # it is used soon
                with suppress(DataError):  # it is raised then
                    self._keep((of, passed), *make_passed())
                    self.use((of, passed), 0, 1)
        make: Make[T] = reader.read()
        is_equal = any((one.of, one.next) == (of, reader.next) for one in self._readers)
        if reader.next < count and not is_equal:
            reader.got = self._calls
            self._readers.append(reader)
            self._bytes += reader.size
        return make()

    def _has(self, key: Hashable) -> bool:
        return key in self._kept or key in self._in_use

    def _keep(self, key: Hashable, result: Any, size: int) -> None:
        self.num_made += 1
        self._kept[key] = _Kept(result, size, self._calls)
        self._bytes += size
        self._end_uses()
        while self._bytes > LARGEST and len(self._kept) > 1 + (not self._in_use):
            self._bytes -= self._kept.popitem(last=False)[1].size
        while self._bytes > MOST_IN_USE and len(self._readers) > 1:
            self._bytes -= self._readers.pop(0).size
            self._warn()
        while self._bytes > MOST_IN_USE and len(self._in_use) > 2:
            self._bytes -= self._in_use.popitem(last=False)[1].size
            self._warn()

    def _end_uses(self) -> None:
        """End the use of what was not got for long: its lane has left it."""
        least = self._calls - _UNUSED * (len(self._in_use) + 1)
        while self._readers and self._readers[0].got < least:
            self._bytes -= self._readers.pop(0).size
        while self._in_use and next(iter(self._in_use.values())).got < least:
            self._end_use(next(iter(self._in_use)))

    def _end_use(self, key: Hashable) -> None:
        found = self._in_use.pop(key)
        found.used = 0
        self._kept[key] = found
        self._kept.move_to_end(key, last=False)

    def _warn(self) -> None:
        if not self._has_warned:
            log.warning(
                "row groups and compressed chunks are decoded again and again: what the lanes of "
                "this process read at a time does not fit in %d MiB. Use more workers or fewer "
                "lanes, a smaller shuffle_buffer_size, or write smaller row groups.",
                MOST_IN_USE >> 20,
            )
        self._has_warned = True


RECENT = _Recent()
