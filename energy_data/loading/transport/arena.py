"""The arena: shared memory that batches travel in, from a worker to the trainer.

One memfd per worker, cut into slots that are reused. The worker writes a batch into a free slot:
its arrays and tensors 64-byte aligned (pickle protocol 5, out of band), long lists of texts, then
the pickle itself if that is large too. The trainer makes views; when the last view of a batch
dies, its slot is free again. A memfd has no name: whatever is killed, nothing is left behind. Both
sides map it once, whole: it is sparse, and a mapping of its own for each slot would cost a file
descriptor each.
"""

from __future__ import annotations

import copyreg
import io
import mmap
import os
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from energy_data.core.memory import buffer_of
from energy_data.core.sample import SampleSource
from energy_data.errors import EnergyDataError
from energy_data.loading.columns import with_columns
from energy_data.loading.copying import Copier
from energy_data.loading.flat import (
    IN_BAND,
    Flat,
    Part,
    bytes_of,
    flattened,
    is_plain,
    tensor_of,
    whole,
)
from energy_data.loading.strings import Strings
from energy_data.loading.transport.draft import Draft, Slot, Watch, aligned, anchored

_PAGE = mmap.PAGESIZE  # the first page is the worker's, to say what it is at
_INLINE = 8192  # bytes; smaller batches are cheaper in the message than in a slot


class ArenaFullError(EnergyDataError):
    """Every slot is held by views of batches that are still alive, and the arena may not grow."""


class Parcel(NamedTuple):
    """A batch on its way: what of it is small, and where the rest is."""

    pickled: bytes | None  # the batch without its buffers; None: it is large, and in the slot
    slot: Slot = Slot(-1, 0, 0)  # of the buffers, if there are any
    spans: tuple[tuple[int, int], ...] = ()  # begin and end of each, and last of a large pickle
    retired: tuple[int, ...] = ()  # numbers of slots that are no more
    is_flat: bool = False  # see `flat`


class ArenaWriter:
    """The worker's side."""

    def __init__(self, limit: int) -> None:
        self.limit = limit  # bytes of all slots together
        # Twice the room, so that slots of changing sizes find a gap; what is not written is not
        # there. The first page says what the worker is at, see `worker`.
        self._space = _PAGE + 2 * -(-limit // _PAGE) * _PAGE
        self.fd = os.memfd_create("energy_data", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self._space)
        self.memory = _mapped(self.fd)
        self._copier = Copier()
        self._stream = io.BytesIO()  # kept: memory that was used before costs no page faults
        self._slots: dict[int, Slot] = {}
        self._free: set[int] = set()
        self._fresh: set[int] = set()  # slots that nothing was copied to yet
        self._drafted: dict[int, Watch] = {}  # slots that this process may still look at
        self._let_go: deque[Watch] = deque()  # of those
        self._sent: set[int] = set()  # slots that the trainer has
        self._retired: list[int] = []  # not told to the trainer yet
        self._made = 0
        self._usual = 0  # bytes of the last batch

    def draft(self) -> Draft | None:
        """Return a slot to make a batch in, of the size of the last one; None if there is none."""
        if not self._usual:
            return None
        try:
            slot = self._take(self._usual)
        except ArenaFullError:
            return None
        memory = memoryview(self.memory)[slot.offset : slot.offset + slot.size]
        draft = Draft(slot, memory, self._let_go)
        self._drafted[slot.number] = draft.watch
        return draft

    def write(self, batch: Any, draft: Draft | None = None) -> Parcel:
        """Return the batch as a parcel. ArenaFullError if there is no room for it now.

        draft: where the batch was made, perhaps; what is there stays there.
        """
        if (taken_apart := flattened(batch)) is not None:
            return self._write_flat(*taken_apart, draft)
        buffers: list[pickle.PickleBuffer] = []
        self._stream.seek(0)
        pickler = pickle.Pickler(self._stream, protocol=5, buffer_callback=_taker(buffers))
        # A table costs nothing for other types; `reducer_override` is called for every object.
        pickler.dispatch_table = _REDUCERS
        pickler.dump(with_columns(batch))
        parts = [buffer.raw() for buffer in buffers]
        places = [draft.place_of(part) if draft else None for part in parts]
        with self._stream.getbuffer() as written, written[: self._stream.tell()] as stream:
            return self._parcel(stream, parts, [part.nbytes for part in parts], places, draft)

    def _write_flat(self, flat: Flat, parts: Sequence[Part], draft: Draft | None) -> Parcel:
        stream = pickle.dumps(tuple(flat), protocol=5)
        sizes = [part.nbytes for part in parts]
        places = [_place_in(draft, part) for part in parts]
        return self._parcel(stream, parts, sizes, places, draft, is_flat=True)

    def _parcel(
        self,
        stream: bytes | memoryview,
        parts: Sequence[bytes | memoryview | Part],
        sizes: Sequence[int],
        places: Sequence[int | None],
        draft: Draft | None,
        *,
        is_flat: bool = False,
    ) -> Parcel:
        """Return what is beside the pickle, and the pickle, as a parcel.

        sizes: bytes of each part. places: where each is in the slot of the draft; None: elsewhere.
        """
        pickled = bytes(stream) if len(stream) <= _INLINE else None
        if pickled is None:
            parts, sizes, places = [*parts, stream], [*sizes, len(stream)], [*places, None]
        elif not parts:
            return Parcel(pickled, is_flat=is_flat)
        spans = _layout(sizes, places, draft.end if draft else 0)
        self._usual = max([end for _, end in spans])
        if draft and self._usual <= draft.slot.size:
            slot = draft.slot
        else:
            places = [None] * len(places)
            spans = _layout(sizes, places, 0)
            slot = self._take(spans[-1][1])
        pieces = [
            (slot.offset + begin, slot.offset + end, part)
            for (begin, end), part, place in zip(spans, parts, places, strict=True)
            if place is None
        ]
        if pieces:
            self._copy(slot, pieces)
        self._fresh.discard(slot.number)
        self._sent.add(slot.number)
        retired, self._retired = tuple(self._retired), []
        return Parcel(pickled, slot, tuple(spans), retired, is_flat)

    def _copy(self, slot: Slot, pieces: list[tuple[int, int, Any]]) -> None:
        strings = [piece for piece in pieces if type(piece[2]) is Strings]
        others = [piece for piece in pieces if type(piece[2]) is not Strings]
        num_bytes = sum([end - begin for begin, end, _ in others])
        # One after another: a part that is not contiguous is copied for it, and soon let go.
        buffers = ((begin, end, _buffer(part)) for begin, end, part in others)
        is_fresh = slot.number in self._fresh
        try:
            self._copier.copy(self.memory, buffers, num_bytes, is_fresh=is_fresh)
            for begin, end, values in strings:
                with memoryview(self.memory) as view, view[begin:end] as into:
                    values.write(into)
        except BaseException:
            if slot.number not in self._drafted:  # else it is free when its draft is let go
                self._free.add(slot.number)
            raise

    def read(self, parcel: Parcel) -> Any:
        """Return a copy of the batch of a parcel that is not to be sent; its slot is given back."""
        _, offset, _ = parcel.slot
        buffers = [
            bytearray(self.memory[offset + begin : offset + end]) for begin, end in parcel.spans
        ]
        self.free([parcel.slot.number])
        self._retired = [*parcel.retired, *self._retired]
        return _read(parcel, buffers)

    def free(self, slots: Sequence[int]) -> None:
        """Say that nobody looks at these slots any more."""
        self._sent.difference_update(slots)
        self._free.update(n for n in slots if n in self._slots and n not in self._drafted)

    def close(self) -> None:
        """Give the memory back, as far as the trainer has no views of it."""
        self.memory.close()
        os.close(self.fd)

    def _take(self, size: int) -> Slot:
        """Return a slot of at least `size` bytes: a free one, else a new one."""
        while self._let_go:
            number = self._let_go.popleft().number
            del self._drafted[number]
            if number not in self._sent:
                self._free.add(number)
        fitting = [self._slots[n] for n in self._free if self._slots[n].size >= size]
        if fitting:
            slot = min(fitting, key=lambda slot: slot.size)
            self._free.discard(slot.number)
            return slot
        self._retire()
        held = sum(slot.size for slot in self._slots.values())
        # A quarter more than needed, so that batches of varying size find their place again.
        for wanted in (size + size // 4, size):
            room = -(-wanted // _PAGE) * _PAGE
            offset = self._gap(room) if held + room <= self.limit else None
            if offset is not None:
                slot = Slot(self._made, offset, room)
                self._slots[slot.number] = slot
                self._fresh.add(slot.number)
                self._made += 1
                return slot
        raise ArenaFullError(self._full(size, held))

    def _retire(self) -> None:
        """Give up the free slots: all are too small, batches have become larger."""
        for number in self._free:
            slot = self._slots.pop(number)
            self.memory.madvise(mmap.MADV_REMOVE, slot.offset, slot.size)
        self._retired += self._free
        self._fresh -= self._free
        self._free.clear()

    def _gap(self, room: int) -> int | None:
        """Return where `room` bytes are free, None if nowhere."""
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
    """The trainer's side, of the file `fd`, which it does not need any longer.

    `pin` is called once for each new slot, with its memory, an object that lives as long as the
    slot and all views of it.
    """

    def __init__(self, fd: int, pin: Callable[[memoryview], Any] | None = None) -> None:
        self._memory = _mapped(fd)
        self._pin = pin
        self._slots: dict[int, memoryview] = {}
        # Slots with batches, as far as `freed` was asked; None: nobody has looked at it yet.
        self._in_use: dict[int, Watch | None] = {}
        self._freed: deque[Watch] = deque()  # of those

    @property
    def first_page(self) -> bytes:
        """The page the worker writes to at any time."""
        return self._memory[:_PAGE]

    def expect(self, parcel: Parcel) -> None:
        """Take over a parcel that has come. If it is not read by the next `freed`, it never is."""
        self._forget(parcel.retired)
        if parcel.spans:
            self._in_use[parcel.slot.number] = None

    def read(self, parcel: Parcel) -> Any:
        """Return the batch, as views of the slot. The slot is freed when the last view dies."""
        if not parcel.spans:
            return _read(parcel, [])
        number, offset, size = parcel.slot
        memory = self._slots.get(number)
        if memory is None:
            memory = self._slots[number] = memoryview(self._memory)[offset : offset + size]
            if self._pin is not None:
                self._pin(memory)
        anchor = anchored(memory)
        self._in_use[number] = Watch.over(anchor, number, self._freed)
        view = memoryview(anchor).cast("B")
        return _read(parcel, [view[begin:end] for begin, end in parcel.spans])

    @property
    def in_use(self) -> int:
        """The number of slots with views that are alive."""
        return len(self._in_use) - len(self._freed)

    @property
    def has_freed(self) -> bool:
        """Whether slots were freed since the last call of `freed`."""
        return bool(self._freed)

    def freed(self) -> list[int]:
        """Return the slots freed since the last call."""
        while self._freed:
            watch = self._freed.popleft()
            if self._in_use.get(watch.number) is watch:  # else an interrupt came before it counted
                self._in_use[watch.number] = None
        slots = [number for number, watch in self._in_use.items() if watch is None]
        for number in slots:
            del self._in_use[number]
        return slots

    def _forget(self, retired: Sequence[int]) -> None:
        for number in retired:
            self._slots.pop(number, None)


def _read(parcel: Parcel, buffers: list[Any]) -> Any:
    """Return the batch of a parcel, which our own worker has written, over these buffers."""
    pickled = buffers.pop() if parcel.pickled is None else parcel.pickled
    if parcel.is_flat:
        return whole(pickle.loads(pickled), buffers)  # noqa: S301 - see above
    return pickle.loads(pickled, buffers=buffers)  # noqa: S301


def _layout(sizes: Sequence[int], places: Sequence[int | None], end: int) -> list[tuple[int, int]]:
    """Return begin and end of each part in a slot: where it is, or behind `end`."""
    spans = []
    for size, place in zip(sizes, places, strict=True):
        begin = aligned(end) if place is None else place
        spans.append((begin, begin + size))
        if place is None:
            end = begin + size
    return spans


def _place_in(draft: Draft | None, part: Part) -> int | None:
    """Return where in the slot of the draft a part was made, None if it was made elsewhere."""
    if draft is None or isinstance(part, Strings) or not part.is_contiguous():
        return None
    return draft.place_at(part.data_ptr(), part.nbytes)


def _buffer(part: bytes | memoryview | torch.Tensor) -> bytes | memoryview:
    return bytes_of(part) if isinstance(part, torch.Tensor) else part


def _taker(buffers: list[pickle.PickleBuffer]) -> Callable[[pickle.PickleBuffer], bool]:
    """Return what takes large buffers out of a pickle, into `buffers`; true leaves one in.

    It knows nothing of the pickler: a cycle through buffers would be left to the collector, which
    clears a memoryview that is still exported, and crashes.
    """

    def take(buffer: pickle.PickleBuffer) -> bool:
        with buffer.raw() as raw:
            if raw.nbytes < IN_BAND:
                return True
        buffers.append(buffer)
        return False

    return take


def _reduced(tensor: torch.Tensor) -> Any:
    """Return how to make a dense tensor again from its bytes; else what pickle does anyway."""
    if not is_plain(tensor):
        return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]  # torch has no types here
    return tensor_of, (buffer_of(tensor.contiguous()), tensor.dtype, tuple(tensor.shape))


def _reduced_source(source: SampleSource) -> Any:
    return SampleSource, tuple(source)


_REDUCERS: dict[type, Callable[[Any], Any]] = {
    **copyreg.dispatch_table,
    torch.Tensor: _reduced,
    SampleSource: _reduced_source,
}


def _mapped(fd: int) -> mmap.mmap:
    memory = mmap.mmap(fd, os.fstat(fd).st_size)
    memory.madvise(mmap.MADV_DONTDUMP)  # a core dump would hold all of it, used or not
    return memory


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.3g} MiB"
