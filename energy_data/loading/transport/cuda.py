"""Every CUDA call of the package; tests replace them by a fake.

None of them runs, and no CUDA context is created, unless there is a GPU and pinned batches or
`device=` are requested. The device is the current one of the trainer.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

log = logging.getLogger(__name__)

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of the process


class Cuda:
    """Pins memory, and copies batches to a device while it computes."""

    def available(self) -> bool:
        """Return whether there is a GPU."""
        return torch.cuda.is_available()

    def pin(self, memory: mmap.mmap) -> None:
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

    def mark(self, stream: Any) -> Any:
        """Return an event that is reached when all current work of `stream` is done."""
        return stream.record_event()

    def await_copies(
        self, event: Any, tensors: Sequence[torch.Tensor], device: torch.device
    ) -> None:
        """Let the stream of the trainer wait for the copies; keep their memory until it is done."""
        current = torch.cuda.current_stream(device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)
