"""Batches on a GPU: pinned memory, and copies to the device ahead of the trainer."""

from __future__ import annotations

import ctypes
import logging
import mmap
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from energy_data.core.cursor import State
from energy_data.loading.epoch_end import with_values
from energy_data.loading.lanes import LaneRunner, LanesStart

log = logging.getLogger(__name__)

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of the process


class Cuda:
    """Every CUDA call of the package; tests replace it by a fake.

    No CUDA context is created, unless there is a GPU and pinned batches or `device=` are requested.
    The device is the current one of the trainer.
    """

    def available(self) -> bool:
        """Return whether there is a GPU."""
        return torch.cuda.is_available()

    def pin(self, memory: memoryview | mmap.mmap) -> None:
        """Register memory with CUDA until it is unmapped. Every view of it is then pinned."""
        size = len(memory)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no types here
        if error := int(runtime.cudaHostRegister(address, size, _PORTABLE)):
            log.warning(
                "pinning %d MiB failed with CUDA error %d: batches are not pinned, and copies to "
                "the GPU are slower. Is `ulimit -l` too small?",
                size >> 20,
                error,
            )
            return
        weakref.finalize(memory, runtime.cudaHostUnregister, address).atexit = False

    def pinner(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return a function that copies a tensor to pinned memory, and may run in any thread.

        It uses the current device of this thread: in a new thread that is GPU 0, and pinning would
        create a context there.
        """
        device = torch.cuda.current_device()

        def pinned(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
                return tensor
            try:
                with torch.cuda.device(device):
                    return tensor.pin_memory()
            except RuntimeError as error:
                log.warning(
                    "pinning %d bytes failed: the batch is not pinned, and its copy to the GPU is "
                    "slower. Is `ulimit -l` too small? (%s)",
                    tensor.nbytes,
                    error,
                )
                return tensor

        return pinned

    def stream(self, device: torch.device) -> Any:
        """Return a new stream on the device."""
        return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # as above

    def copied(self, tensor: torch.Tensor, device: torch.device, stream: Any) -> torch.Tensor:
        """Start copying the tensor on `stream`, and return the copy."""
        with torch.cuda.stream(stream):
            return tensor.to(device, non_blocking=True)

    def mark(self, stream: Any = None) -> Any:
        """Return an event that is reached when all current work of `stream` is done.

        None: the current stream.
        """
        return (stream or torch.cuda.current_stream()).record_event()

    def await_copies(
        self, event: Any, tensors: Sequence[torch.Tensor], device: torch.device
    ) -> None:
        """Let the stream of the trainer wait for the copies; keep their memory until it is done."""
        current = torch.cuda.current_stream(device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)


class _Copy(NamedTuple):
    """A micro-batch that is being copied to the device, or the error in its place."""

    batch: int
    items: Sequence[Any] = ()  # on the device
    tensors: Sequence[torch.Tensor] = ()  # of the items
    event: Any = None  # reached when the copies are done
    error: BaseException | None = None


class OnDevice(LaneRunner):
    """Returns the batches of another lane runner on a device.

    The next batch is copied while the trainer works on the current one. Its memory on the CPU is
    kept until the copy is done. The state of the run is that of the batch handed over, not of the
    one copied ahead.
    """

    def __init__(self, host: LaneRunner, device: torch.device, stride: int, cuda: Cuda) -> None:
        self.profiler = host.profiler
        self._host, self._device, self._stride, self._cuda = host, device, stride, cuda
        self._start = LanesStart(0, 1, {}, {})
        self._ended: set[int] = set()
        self._ahead: _Copy | None = None
        self._stream: Any = None
        self._copying: deque[tuple[Any, Any]] = deque()  # event, batch on the CPU kept until then

    @property
    def slots_in_use(self) -> int:  # noqa: D102
        return self._host.slots_in_use

    def adopt(self, start: LanesStart) -> None:  # noqa: D102
        self._ahead, self._ended, self._start = None, set(), start
        self._host.adopt(start)

    def keep(self, batch: int) -> None:  # noqa: D102
        self._host.keep(batch)

    def states(self, batch: int | None = None) -> dict[int, State]:  # noqa: D102
        return self._host.states(batch)

    def take(self, lane: int, batch: int) -> Sequence[Any]:  # noqa: D102
        ahead = self._ahead
        if ahead is None or ahead.batch != batch:
            ahead = self._fetch(lane, batch)
        self._ahead = None
        if ahead.error is not None:
            if isinstance(ahead.error, StopIteration):
                self._ended.add(lane)
            raise ahead.error
        following = batch + self._stride
        lane = following % self._start.num_lanes
        if lane not in self._ended and self._start.has(following):
            self._ahead = self._fetch(lane, following)
        if ahead.items:
            self._cuda.await_copies(ahead.event, ahead.tensors, self._device)
        return ahead.items

    def close(self) -> None:  # noqa: D102
        self._copying.clear()
        self._host.close()

    def _fetch(self, lane: int, batch: int) -> _Copy:
        try:
            items = self._host.take(lane, batch)
        except (Exception, StopIteration) as error:  # noqa: BLE001 - raised when the trainer asks for the batch
            return _Copy(batch, error=error)
        if not items:
            return _Copy(batch)
        if self._stream is None:
            self._stream = self._cuda.stream(self._device)
        tensors: list[torch.Tensor] = []

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            tensors.append(self._cuda.copied(tensor, self._device, self._stream))
            return tensors[-1]

        on_device = with_tensors(items[0], copied)
        event = self._cuda.mark(self._stream)
        self._copying.append((event, items))
        while len(self._copying) > 1 and self._copying[0][0].query():
            self._copying.popleft()
        return _Copy(batch, [on_device], tensors, event)


def with_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the batch with `change` applied to every tensor; containers keep their types."""
    return with_values(
        batch,
        lambda value: change(value) if isinstance(value, torch.Tensor) else value,
        into_lists=True,
    )
