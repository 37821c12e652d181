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
from dataclasses import dataclass
from typing import Any, TypeVar

from energy_data.errors import StructureError

log = logging.getLogger(__name__)

LARGEST = 1 << 28  # bytes that a thread keeps; at least two results
MOST = 1 << 32  # bytes that it keeps if it turns out that less is too little
_PASSED = 8  # pieces before one that is read, which are kept
_REMEMBERED = 256  # keys of what was forgotten too early, perhaps

T = TypeVar("T")
Make = Callable[[], tuple[T, int]]
"""Returns a result, and its bytes."""
Decode = Callable[[], tuple[Iterator[Make[T]], int]]
"""Returns an iterator of what makes each piece, from the first on, and the bytes that it holds."""


@dataclass(slots=True)
class _Kept:
    result: Any
    size: int
    used: int = 0  # how much of it was used; 0 if all was


@dataclass(frozen=True)  # a tuple would be the key of a piece
class _ReaderKey:
    """The key of an iterator of pieces."""

    of: Hashable
    next: int  # number of the piece that comes next


class _Recent(threading.local):
    """Results by what they depend on, of each thread its own: a forked process inherits no lock.

    Those got last are kept. If one of which a part was not used yet is needed again after it was
    forgotten, more of these are kept from then on, up to `MOST`: as much as lanes read at a time.
    (Such ghost entries adapt ARC too: Megiddo and Modha, FAST 2003.)
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()  # the first is forgotten first
        self._forgotten: OrderedDict[Hashable, None] = OrderedDict()  # before they were used
        self._bytes = 0
        self._more = 0  # bytes that are kept besides `LARGEST`
        self._has_warned = False
        self.num_made = 0  # for tests that count

    def get(self, key: Hashable, make: Make[T]) -> T:
        """Return the result of a key. make: returns it, if it is not kept.

        key: what the result depends on, with the version of each file.
        """
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            found: T = kept.result
            return found
        found, size = make()
        self._make_room(key)
        self._keep(key, found, size)
        return found

    def piece(self, of: Hashable, number: int, count: int, decode: Decode[T]) -> T:
        """Return the result of (of, number), a piece of what is decoded from its start on.

        It is decoded from the nearest piece on that was read before. A lane reads pieces in their
        order, so each is decoded once. count: of all pieces.
        """
        found: T = self.get((of, number), lambda: self._read(of, number, count, decode))
        return found

    def use(self, key: Hashable, amount: int, whole: int) -> None:
        """Note how much of a result was used, of all there is.

        When all was used, it is forgotten before others, as it is not needed for a long time. Of
        such results the last one is forgotten first. So if all are needed again in turn, some are
        still there.
        """
        if (kept := self._kept.get(key)) is None:
            return
        kept.used += amount
        if kept.used >= whole:
            kept.used = 0
            self._kept.move_to_end(key, last=False)

    def clear(self) -> None:
        """Forget all results, and how much is needed."""
        self._kept.clear()
        self._forgotten.clear()
        self._bytes = self._more = 0

    def _read(self, of: Hashable, number: int, count: int, decode: Decode[T]) -> tuple[T, int]:
        at, pieces, size = self._reader(of, number, decode)
        for passed in range(at, number):
            make_passed = _next(pieces)
            if number - passed <= _PASSED and (of, passed) not in self._kept:
                self._keep((of, passed), *make_passed())  # it is used soon
        made = _next(pieces)()
        reader = _ReaderKey(of, number + 1)
        if number + 1 < count and reader not in self._kept:
            self._keep(reader, pieces, size)
        return made

    def _reader(
        self, of: Hashable, number: int, decode: Decode[T]
    ) -> tuple[int, Iterator[Make[T]], int]:
        """Return the nearest reader before a piece: its next piece, itself, and its bytes."""
        readers = (key for key in self._kept if isinstance(key, _ReaderKey) and key.of == of)
        before = (key for key in readers if key.next <= number)
        nearest = max(before, key=lambda key: key.next, default=None)
        if nearest is None:
            for at in range(max(number - _PASSED, 1), number + 1):
                self._make_room(_ReaderKey(of, at))
            return 0, *decode()
        kept = self._kept.pop(nearest)
        self._bytes -= kept.size
        return nearest.next, kept.result, kept.size

    def _keep(self, key: Hashable, result: Any, size: int) -> None:
        self.num_made += not isinstance(key, _ReaderKey)
        self._kept[key] = _Kept(result, size)
        self._bytes += size
        while len(self._kept) > 2 and self._bytes > LARGEST:
            first = next(iter(self._kept))
            oldest = self._kept[first]
            is_in_use = bool(oldest.used) or isinstance(first, _ReaderKey)
            if is_in_use and self._bytes <= LARGEST + self._more:
                break
            self._bytes -= self._kept.pop(first).size
            if is_in_use:
                self._forgotten[first] = None
        while len(self._forgotten) > _REMEMBERED:
            self._forgotten.popitem(last=False)

    def _make_room(self, key: Hashable) -> None:
        """Keep more from now on, if a key was forgotten that is needed again."""
        if key not in self._forgotten:
            return
        self._forgotten.clear()  # others were forgotten because there was so little room
        if LARGEST + self._more < MOST:
            self._more = min(self._more + (LARGEST + self._more) // 2, MOST - LARGEST)
        elif not self._has_warned:
            self._has_warned = True
            log.warning(
                "row groups and compressed chunks are decoded again and again: what the lanes of "
                "this process read at a time does not fit in %d MiB. Use more workers or fewer "
                "lanes, a smaller shuffle_buffer_size, or write smaller row groups.",
                MOST >> 20,
            )


def _next(pieces: Iterator[Make[T]]) -> Make[T]:
    if (make := next(pieces, None)) is None:
        raise StructureError("it has fewer pieces than it should have. Restore it.")
    return make


RECENT = _Recent()
