"""The arena: shared memory that batches travel in, from a worker to the trainer.

One memfd per worker, cut into slots that are reused. The worker writes a batch into a free slot:
its arrays and tensors 64-byte aligned (pickle protocol 5, out of band), then the pickle itself. The
trainer maps each slot once and makes views; when the last view of a batch dies, its slot is free
again. A memfd has no name: whatever is killed, nothing is left behind.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import pickle
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from energy_data.errors import EnergyDataError

ALIGNMENT = 64
_PAGE = mmap.PAGESIZE  # the first page is the worker's, to say what it is at
_IN_BAND = 1024  # bytes; smaller buffers are cheaper inside the pickle than beside it
_INLINE = 8192  # bytes; smaller batches are cheaper in the message than in a slot


class ArenaFullError(EnergyDataError):
    """Every slot is held by views of batches that are still alive, and the arena may not grow."""


class Parcel(NamedTuple):
    """A batch on its way: where it is, or the batch itself if it is small."""

    pickled: bytes | None  # the whole batch, of small ones; else it is in the slot
    slot: int = -1
    offset: int = 0  # of the slot in the memfd, bytes
    size: int = 0  # of the slot, bytes
    spans: tuple[tuple[int, int], ...] = ()  # begin and end of each buffer in the slot; pickle last
    retired: tuple[int, ...] = ()  # slots that are no more


class _Slot:
    def __init__(self, number: int, fd: int, offset: int, size: int) -> None:
        self.number, self.offset, self.size = number, offset, size
        self.map = mmap.mmap(fd, size, offset=offset)


class ArenaWriter:
    """The worker's side."""

    def __init__(self, limit: int) -> None:
        self.fd = os.memfd_create("energy_data", os.MFD_CLOEXEC)
        self.limit = limit  # bytes of all slots together
        os.ftruncate(self.fd, _PAGE)
        self._end = _PAGE
        self._slots: dict[int, _Slot] = {}
        self._free: set[int] = set()
        self._made = 0

    def write(self, batch: Any) -> Parcel:
        """Return the batch as a parcel. ArenaFullError if there is no room for it now."""
        file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
        _Pickler(file, buffers).dump(batch)
        stream = file.getbuffer()
        if not buffers and len(stream) <= _INLINE:
            return Parcel(bytes(stream))
        parts = [*(buffer.raw() for buffer in buffers), stream]
        spans, end = [], 0
        for part in parts:
            begin = -(-end // ALIGNMENT) * ALIGNMENT
            end = begin + part.nbytes
            spans.append((begin, end))
        slot, retired = self._take(end)
        view = memoryview(slot.map)
        for (begin, stop), part in zip(spans, parts, strict=True):
            view[begin:stop] = part
        view.release()
        return Parcel(None, slot.number, slot.offset, slot.size, tuple(spans), retired)

    def free(self, slots: Sequence[int]) -> None:
        """Say that nobody looks at these slots any more."""
        self._free.update(slot for slot in slots if slot in self._slots)

    def close(self) -> None:
        """Give the memory back, as far as the trainer has no views of it."""
        for slot in self._slots.values():
            slot.map.close()
        os.close(self.fd)

    def _take(self, size: int) -> tuple[_Slot, tuple[int, ...]]:
        """Return a free slot of at least `size` bytes, and the slots given up for it."""
        fitting = [self._slots[n] for n in self._free if self._slots[n].size >= size]
        if fitting:
            slot = min(fitting, key=lambda slot: slot.size)
            self._free.discard(slot.number)
            return slot, ()
        retired = tuple(self._free)  # all too small: batches have become larger
        for number in retired:
            small = self._slots.pop(number)
            small.map.madvise(mmap.MADV_REMOVE)
            small.map.close()
        self._free.clear()
        # A quarter more than needed, so that batches of varying size find their place again.
        room = -(-(size + size // 4) // _PAGE) * _PAGE
        held = sum(slot.size for slot in self._slots.values())
        if held + room > self.limit:
            raise ArenaFullError(
                f"arena: {len(self._slots)} batches ({held >> 20} MiB) are still in use and the "
                f"next needs {room >> 20} MiB, the limit is {self.limit >> 20} MiB per worker. "
                f"Do not keep batches (or keep copies: tensor.clone()), or raise `arena_bytes`."
            )
        os.ftruncate(self.fd, self._end + room)
        slot = _Slot(self._made, self.fd, self._end, room)
        self._slots[slot.number] = slot
        self._made, self._end = self._made + 1, self._end + room
        return slot, retired


class ArenaReader:
    """The trainer's side. `pin` is called once for each new slot, with its memory."""

    def __init__(self, fd: int, pin: Any = None) -> None:
        self.fd, self._pin = fd, pin
        self._maps: dict[int, mmap.mmap] = {}
        self._freed: deque[int] = deque()  # filled by finalizers, which may run anywhere
        self.in_use = 0

    def read(self, parcel: Parcel) -> Any:
        """Return the batch, as views of the slot. The slot is freed when the last view dies."""
        for number in parcel.retired:
            self._maps.pop(number, None)
        if parcel.pickled is not None:
            return pickle.loads(parcel.pickled)  # noqa: S301 - written by our own worker
        memory = self._maps.get(parcel.slot)
        if memory is None:
            memory = mmap.mmap(self.fd, parcel.size, offset=parcel.offset)
            self._maps[parcel.slot] = memory
            if self._pin is not None:
                self._pin(memory)
        # Views of views keep this object alive; numpy and torch would drop an array in between.
        anchor = (ctypes.c_char * parcel.size).from_buffer(memory)
        weakref.finalize(anchor, self._freed.append, parcel.slot).atexit = False
        view = memoryview(anchor).cast("B")
        *buffers, (begin, end) = parcel.spans
        views = [view[first:stop] for first, stop in buffers]
        return pickle.loads(view[begin:end], buffers=views)  # noqa: S301 - as above

    def discard(self, parcel: Parcel) -> None:
        """Free the slot of a parcel that nobody will read."""
        for number in parcel.retired:
            self._maps.pop(number, None)
        if parcel.pickled is None:
            self._freed.append(parcel.slot)

    def freed(self) -> list[int]:
        """Return the slots freed since the last call."""
        slots = []
        while self._freed:
            slots.append(self._freed.popleft())
        return slots

    def close(self) -> None:
        """Close the memfd. Views that are alive stay valid."""
        self._maps.clear()
        os.close(self.fd)


class _Pickler(pickle.Pickler):
    """Pickles arrays and tensors as buffers beside the stream."""

    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer]) -> None:
        self._buffers = buffers
        super().__init__(file, protocol=5, buffer_callback=self._beside)

    def _beside(self, buffer: pickle.PickleBuffer) -> bool:
        """Take a buffer out of the pickle; true leaves it in."""
        if buffer.raw().nbytes < _IN_BAND:
            return True
        self._buffers.append(buffer)
        return False

    def reducer_override(self, value: Any) -> Any:
        """Return how to make a dense tensor again from its bytes; else what pickle does anyway."""
        if type(value) is not torch.Tensor or not _is_plain(value):
            return NotImplemented
        flat = value.detach().contiguous().reshape(-1)
        data = pickle.PickleBuffer(memoryview(flat.view(torch.uint8).numpy()))
        return tensor_of, (data, value.dtype, tuple(value.shape))


def tensor_of(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor over the memory of `data`; no copy."""
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.numel() > 0
        and not tensor.is_quantized
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
    )
