"""Memory for the tensors of a batch: ordinary, or, in a worker, where the batch will travel.

A tensor that is made in its place need not be copied there.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import prod
from pickle import PickleBuffer
from typing import Any, Protocol

import numpy as np
import torch

_FEWEST = 4096  # bytes; smaller tensors are copied


class Place(Protocol):
    """Memory that the tensors of one batch may be made in."""

    def take(self, num_bytes: int) -> memoryview | None:
        """Return so many bytes that nobody else has; None if they are not there."""
        ...


class _Here(threading.local):  # code of the user's may make batches in threads of its own
    place: Place | None = None


_HERE = _Here()


class MakingIn:
    """While it lasts, tensors are made in a place, in this thread; None: in ordinary memory."""

    def __init__(self, place: Place | None) -> None:
        self._place = place

    def __enter__(self) -> None:
        _HERE.place = self._place

    def __exit__(self, *_: object) -> None:
        _HERE.place = None


def empty_bytes(num_bytes: int) -> memoryview:
    """Return memory with any contents."""
    memory = _taken(num_bytes)
    return np.empty(num_bytes, np.uint8).data if memory is None else memory


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a contiguous tensor on the CPU with any contents; its memory cannot be resized."""
    memory = _taken(prod(shape) * dtype.itemsize)
    if memory is not None:
        return torch.frombuffer(memory, dtype=dtype).reshape(*shape)
    return torch.empty(*shape, dtype=dtype, device="cpu")  # whatever the default device is


def _taken(num_bytes: int) -> memoryview | None:
    """Return memory of the place that tensors are made in, None if there is none to be had."""
    place = _HERE.place
    return place.take(num_bytes) if place is not None and num_bytes >= _FEWEST else None


def buffer_of(tensor: torch.Tensor) -> PickleBuffer:
    """Return the bytes of a contiguous tensor on the CPU that needs no gradient."""
    array: Any  # numpy's stubs call it a buffer from 3.12 on
    try:
        array = tensor.numpy()
    except TypeError:  # numpy lacks its dtype
        # Not `reshape`: a dimension of one number may have any stride, which `view` minds.
        flat = tensor.as_strided((tensor.numel(),), (1,))
        array = flat.view(torch.uint8).numpy()
    return PickleBuffer(array)
