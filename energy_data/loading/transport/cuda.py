"""The CUDA calls we make, all of them; tests put a fake in their place.

Nothing here runs, and no CUDA context is made, unless there is a GPU and pinning or copies are
asked for. The device is the one the trainer has made current.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import weakref
from collections.abc import Callable
from typing import Any

import torch

log = logging.getLogger(__name__)

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of the process


class Cuda:
    """Pins memory, and copies batches to a device beside what runs there."""

    def available(self) -> bool:
        """Return whether there is a GPU."""
        return torch.cuda.is_available()

    def pin(self, memory: mmap.mmap) -> None:
        """Register memory with CUDA, once, for as long as it is mapped: views of it are pinned."""
        size = len(memory)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no types here
        if error := int(runtime.cudaHostRegister(address, size, _PORTABLE)):
            log.warning(
                "pinning %d MiB failed with CUDA error %d: batches come unpinned, copies to the "
                "GPU are slower. Is `ulimit -l` too small?",
                size >> 20,
                error,
            )
            return
        weakref.finalize(memory, runtime.cudaHostUnregister, address).atexit = False

    def pinner(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return what copies a tensor to pinned memory, in any thread, for the device of this one.

        A new thread has GPU 0, and would make a context there.
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
                    "pinning %d bytes failed: the batch comes unpinned, its copy to the GPU is "
                    "slower. Is `ulimit -l` too small? (%s)",
                    tensor.nbytes,
                    error,
                )
                return tensor

        return pinned

    def stream(self, device: torch.device) -> Any:
        """Return a stream of our own on the device."""
        return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # as above

    def copied(self, tensor: torch.Tensor, device: torch.device, stream: Any) -> torch.Tensor:
        """Return the tensor on the device; the copy runs on `stream`."""
        with torch.cuda.stream(stream):
            return tensor.to(device, non_blocking=True)

    def mark(self, stream: Any) -> Any:
        """Return an event: what `stream` was given so far is done."""
        return stream.record_event()

    def await_copies(self, event: Any, tensors: list[torch.Tensor], device: torch.device) -> None:
        """Make the trainer's stream wait for the copies, and keep their memory until it is done."""
        current = torch.cuda.current_stream(device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)
