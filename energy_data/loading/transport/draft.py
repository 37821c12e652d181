"""A slot of the arena that a batch is being made in, so that it need not be copied there."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from functools import lru_cache
from typing import Any, NamedTuple

ALIGNMENT = 64  # bytes, of what is in a slot


class Slot(NamedTuple):
    """A part of the memory that holds one batch at a time."""

    number: int
    offset: int
    size: int


class Watch(weakref.ref[Any]):
    """Is put into a queue when the memory of a slot is in use no more, by whatever thread.

    As long as it is kept. No code of ours runs then, which might be within anything.
    """

    __slots__ = ("number",)

    number: int  # of the slot

    @classmethod
    def over(cls, anchor: Any, number: int, ended: deque[Watch]) -> Watch:
        """Watch what `anchored` returned."""
        watch = cls(anchor, ended.append)
        watch.number = number
        return watch


class Draft:
    """Gives memory of one slot, piece by piece; a `energy_data.core.memory.Place`.

    memory: of the slot, writable. ended: gets `watch` when nothing of it is in use in this process.
    """

    def __init__(self, slot: Slot, memory: memoryview, ended: deque[Watch]) -> None:
        self.slot = slot
        self.end = 0  # of what was taken
        anchor = anchored(memory)
        self.watch = Watch.over(anchor, slot.number, ended)
        self._begin = ctypes.addressof(anchor)
        self._view: memoryview | None = memoryview(anchor).cast("B")

    def take(self, num_bytes: int) -> memoryview | None:
        """Return so many bytes that nobody else has; None if they are not there."""
        begin = aligned(self.end)
        if self._view is None or begin + num_bytes > self.slot.size:
            return None
        self.end = begin + num_bytes
        return self._view[begin : self.end]

    def place_of(self, data: memoryview) -> int | None:
        """Return where in the slot these bytes are, None if they are elsewhere."""
        if data.readonly:
            return None
        place = ctypes.addressof(ctypes.c_char.from_buffer(data)) - self._begin
        return place if 0 <= place < self.end else None

    def place_at(self, address: int, num_bytes: int) -> int | None:
        """Return where in the slot the memory at an address is, None if it is elsewhere."""
        place = address - self._begin
        return place if 0 <= place <= self.end - num_bytes else None

    def close(self) -> bool:
        """Give no more memory; return whether all that was given is out of use here."""
        self._view = None
        return self.watch() is None


def anchored(memory: memoryview) -> Any:
    """Return an object over `memory` that lives as long as any view of it, and any view of those.

    Numpy and torch would drop an array in between, but keep this one.
    """
    return _bytes_kind(len(memory)).from_buffer(memory)


@lru_cache(256)
def _bytes_kind(size: int) -> Any:
    return ctypes.c_char * size


def aligned(end: int) -> int:
    """Return where the next thing may begin."""
    return -(-end // ALIGNMENT) * ALIGNMENT
