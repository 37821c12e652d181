"""The arena: shared memory in which batches travel from a worker to the trainer.

A worker has one memfd, cut into slots that are reused. The worker writes the large buffers of a
batch into a free slot, 64-byte aligned, and the pickle too if it is large. The trainer makes views
of the slot; when the last view dies, the slot is free again. A memfd has no name, so nothing is
left behind when a process is killed. Each side maps it once: a mapping per slot would cost a file
descriptor per slot, and pages that were never written take no memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from energy_data.errors import EnergyDataError
from energy_data.loading.transport.codec import decode, encode

if TYPE_CHECKING:
    from energy_data.loading.transport.device import Cuda

_PAGE = mmap.PAGESIZE  # the first page is for the status of the worker
_ALIGNMENT = 64  # bytes
_INLINE = 8192  # bytes; a pickle up to this size is cheaper in the message than in a slot


class ArenaFullError(EnergyDataError):
    """Views of batches that are still alive hold every slot, and the arena is at its limit."""


class Slot(NamedTuple):
    """A part of the arena that holds one batch at a time."""

    number: int
    offset: int  # bytes
    size: int  # bytes


class BatchHandle(NamedTuple):
    """An encoded batch: what travels in the message, and where in the arena the rest is."""

    pickled: bytes | None  # None: the pickle is the last span
    slot: Slot = Slot(-1, 0, 0)  # of the spans, if there are any
    spans: tuple[tuple[int, int], ...] = ()  # begin and end of each buffer in the slot
    retired: tuple[int, ...] = ()  # numbers of slots that no longer exist


class FreeNotice(weakref.ref[Any]):
    """Appends itself to a queue when the memory of a slot is no longer in use.

    It does so in whatever thread drops the last view, and runs no Python code there.
    """

    __slots__ = ("number",)

    number: int  # of the slot

    @classmethod
    def create(cls, owner: Any, number: int, queue: deque[FreeNotice]) -> FreeNotice:
        """Watch `owner`, which `keepalive` returned. The notice must be kept."""
        notice = cls(owner, queue.append)
        notice.number = number
        return notice


class SlotAllocator:
    """Allocates the tensors of one batch in a slot; an `energy_data.core.batch_memory.Allocator`.

    The slot is acquired when the first tensor is made: other batches need none.
    """

    def __init__(self, writer: ArenaWriter) -> None:
        self._writer: ArenaWriter | None = writer  # None: it was asked for a slot
        self.slot: Slot | None = None
        self.end = 0  # bytes allocated
        self._begin = 0  # address
        self._view: memoryview | None = None
        self._notice: FreeNotice | None = None

    def take(self, num_bytes: int) -> memoryview | None:
        """Return `num_bytes` bytes with any contents, or None if there is no room for them."""
        if self._writer is not None:
            acquired, self._writer = self._writer.acquire(), None
            if acquired is not None:
                self.slot, owner, self._notice = acquired
                self._begin = ctypes.addressof(owner)
                self._view = memoryview(owner).cast("B")
        begin = _aligned(self.end)
        if self._view is None or begin + num_bytes > len(self._view):
            return None
        self.end = begin + num_bytes
        return self._view[begin : self.end]

    def place_of(self, part: memoryview) -> int | None:
        """Return the offset of a buffer in the slot, or None if it is elsewhere."""
        if self.slot is None or part.readonly:
            return None
        place = ctypes.addressof(ctypes.c_char.from_buffer(part)) - self._begin
        return place if 0 <= place < self.end else None

    def close(self) -> bool:
        """Stop allocating. Return whether this process uses none of the memory any more."""
        self._writer = self._view = None
        return self._notice is None or self._notice() is None


class ArenaWriter:
    """The worker's side. `limit` is the total size of all slots in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # Twice the space, so that slots of changing sizes find a gap.
        self._space = _PAGE + 2 * -(-limit // _PAGE) * _PAGE
        self.fd = os.memfd_create("energy_data", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self._space)
        self.memory = _mapped(self.fd)
        self._slots: dict[int, Slot] = {}
        self._sent: set[int] = set()  # slots that the trainer holds
        self._allocated: dict[int, FreeNotice] = {}  # slots that this process may still use
        self._freed: deque[FreeNotice] = deque()  # of those
        self._retired: list[int] = []  # slots that the trainer has not been informed of
        self._num_slots_made = 0
        self._last_size = 0  # bytes of the last batch

    def allocator(self) -> SlotAllocator:
        """Return an allocator in a slot that fits a batch as large as the last, if there is one."""
        return SlotAllocator(self)

    def acquire(self) -> tuple[Slot, Any, FreeNotice] | None:
        """Return a free slot of that size, its memory, and what notes that it is free again."""
        if not self._last_size:
            return None
        try:
            slot = self._take(self._last_size)
        except ArenaFullError:
            return None
        owner = keepalive(memoryview(self.memory)[slot.offset : slot.offset + slot.size])
        notice = FreeNotice.create(owner, slot.number, self._freed)
        self._allocated[slot.number] = notice
        return slot, owner, notice

    def write(self, batch: Any, allocator: SlotAllocator | None = None) -> BatchHandle:
        """Write the batch and return its handle. ArenaFullError if there is no room now.

        What was made with the allocator stays where it is; the rest is copied.
        """
        pickled, parts = encode(batch)
        inline = bytes(pickled) if len(pickled) <= _INLINE else None
        if inline is None:
            parts.append(pickled)
        elif not parts:
            return BatchHandle(inline)
        sizes = [*map(len, parts)]
        places = [allocator.place_of(part) if allocator else None for part in parts]
        spans = _layout(sizes, places, allocator.end if allocator else 0)
        self._last_size = max(end for _, end in spans)
        slot = allocator.slot if allocator else None
        if slot is None or self._last_size > slot.size:
            places = [None] * len(parts)
            spans = _layout(sizes, places, 0)
            slot = self._take(spans[-1][1])
        for (begin, end), place, part in zip(spans, places, parts, strict=True):
            if place is None:
                self.memory[slot.offset + begin : slot.offset + end] = part
        self._sent.add(slot.number)
        retired, self._retired = tuple(self._retired), []
        return BatchHandle(inline, slot, tuple(spans), retired)

    def read(self, handle: BatchHandle) -> Any:
        """Return a copy of a batch that will not be sent, and free its slot."""
        offset = handle.slot.offset
        buffers = [
            bytearray(self.memory[offset + begin : offset + end]) for begin, end in handle.spans
        ]
        self.free([handle.slot.number])
        self._retired = [*handle.retired, *self._retired]
        return _decoded(handle, buffers)

    def free(self, slots: Sequence[int]) -> None:
        """Reuse slots that the trainer no longer holds."""
        self._sent.difference_update(slots)

    def close(self) -> None:
        """Unmap the memory. Views that the trainer holds stay valid."""
        self.memory.close()
        os.close(self.fd)

    def _take(self, size: int) -> Slot:
        """Return a slot of at least `size` bytes: a free one, else a new one."""
        while self._freed:
            del self._allocated[self._freed.popleft().number]
        used = self._sent | self._allocated.keys()
        free = [slot for number, slot in self._slots.items() if number not in used]
        fitting = [slot for slot in free if slot.size >= size]
        if fitting:
            return min(fitting, key=lambda slot: slot.size)
        for slot in free:  # they have become too small: give up their memory
            del self._slots[slot.number]
            self.memory.madvise(mmap.MADV_REMOVE, slot.offset, slot.size)
            self._retired.append(slot.number)
        held = sum(slot.size for slot in self._slots.values())
        # A quarter more than needed, so that batches of varying size fit the same slots.
        for wanted in (size + size // 4, size):
            room = -(-wanted // _PAGE) * _PAGE
            offset = self._gap(room) if held + room <= self.limit else None
            if offset is not None:
                slot = Slot(self._num_slots_made, offset, room)
                self._slots[slot.number] = slot
                self._num_slots_made += 1
                return slot
        raise ArenaFullError(self._full(size, held))

    def _gap(self, room: int) -> int | None:
        """Return the offset of `room` unused bytes, or None."""
        end = _PAGE
        for slot in sorted(self._slots.values(), key=lambda slot: slot.offset):
            if slot.offset - end >= room:
                return end
            end = slot.offset + slot.size
        return end if self._space - end >= room else None

    def _full(self, size: int, held: int) -> str:
        if not self._slots:
            return (
                f"arena: a batch needs {_mebibytes(size)}, the limit is "
                f"{_mebibytes(self.limit)} per worker. Raise `arena_bytes`."
            )
        return (
            f"arena: {len(self._slots)} batches ({_mebibytes(held)}) of this worker are still in "
            f"use and the next needs {_mebibytes(size)}, the limit is {_mebibytes(self.limit)} per "
            f"worker. Do not keep batches (or keep copies: tensor.clone()), or raise `arena_bytes`."
        )


class ArenaReader:
    """The trainer's side of the memfd `fd`, which may be closed afterwards.

    With `cuda`, slots are pinned. Copies from pinned memory to a GPU run after the call that
    starts them returns, so a slot whose views are gone is free only when the GPU has done what it
    had to do when `freed` noticed it.
    """

    def __init__(self, fd: int, cuda: Cuda | None = None) -> None:
        self._memory = _mapped(fd)
        self._cuda = cuda
        self._slots: dict[int, memoryview] = {}
        self._in_use: dict[int, FreeNotice | None] = {}  # None: expected, but not read
        self._freed: deque[FreeNotice] = deque()
        self._copied: deque[tuple[Any, list[int]]] = deque()  # event, slots free when it is reached

    @property
    def first_page(self) -> bytes:
        """The page that the worker may write to at any time."""
        return self._memory[:_PAGE]

    def expect(self, handle: BatchHandle) -> None:
        """Register a batch that has arrived. `freed` frees its slot unless it is read first."""
        for number in handle.retired:
            self._slots.pop(number, None)
        if handle.spans:
            self._in_use[handle.slot.number] = None

    def read(self, handle: BatchHandle) -> Any:
        """Return the batch as views of its slot, which is freed when the last view dies."""
        if not handle.spans:
            return _decoded(handle, [])
        number, offset, size = handle.slot
        memory = self._slots.get(number)
        if memory is None:
            memory = self._slots[number] = memoryview(self._memory)[offset : offset + size]
            if self._cuda is not None:
                self._cuda.pin(memory)
        owner = keepalive(memory)
        self._in_use[number] = FreeNotice.create(owner, number, self._freed)
        view = memoryview(owner).cast("B")
        return _decoded(handle, [view[begin:end] for begin, end in handle.spans])

    @property
    def in_use(self) -> int:
        """The number of slots with views that are alive."""
        return len(self._in_use) - len(self._freed)

    @property
    def has_freed(self) -> bool:
        """Whether slots were freed since the last call of `freed`. Waits for pending copies."""
        for event, _ in self._copied:
            event.synchronize()
        return bool(self._freed or self._copied)

    def freed(self) -> list[int]:
        """Return the numbers of the slots freed since the last call."""
        while self._freed:
            notice = self._freed.popleft()
            # An exception that interrupted `read` may have left the notice of an earlier batch.
            if self._in_use.get(notice.number) is notice:
                self._in_use[notice.number] = None
        slots = [number for number, notice in self._in_use.items() if notice is None]
        for number in slots:
            del self._in_use[number]
        if self._cuda is None:
            return slots
        if slots:
            self._copied.append((self._cuda.mark(), slots))
        done: list[int] = []
        while self._copied and self._copied[0][0].query():
            done += self._copied.popleft()[1]
        return done


def keepalive(memory: memoryview) -> Any:
    """Return an object over `memory` that lives as long as any view of it, and views of views.

    Numpy and torch drop arrays in between, but keep this object.
    """
    return _array_type(len(memory)).from_buffer(memory)


@lru_cache(256)
def _array_type(size: int) -> Any:
    return ctypes.c_char * size


def _decoded(handle: BatchHandle, buffers: list[Any]) -> Any:
    pickled = buffers.pop() if handle.pickled is None else handle.pickled
    return decode(pickled, buffers)


def _layout(sizes: Sequence[int], places: Sequence[int | None], end: int) -> list[tuple[int, int]]:
    """Return begin and end of each buffer in a slot: at its place, or behind `end`."""
    spans = []
    for size, place in zip(sizes, places, strict=True):
        begin = _aligned(end) if place is None else place
        spans.append((begin, begin + size))
        if place is None:
            end = begin + size
    return spans


def _aligned(end: int) -> int:
    return -(-end // _ALIGNMENT) * _ALIGNMENT


def _mapped(fd: int) -> mmap.mmap:
    memory = mmap.mmap(fd, os.fstat(fd).st_size)
    memory.madvise(mmap.MADV_DONTDUMP)  # a core dump would include every page
    return memory


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.3g} MiB"
