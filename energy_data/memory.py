"""Memory for the tensors of a batch: ordinary, or, in a worker, where the batch will travel.

A tensor that is made in its place need not be copied there. Nor need the tensors of samples be that
are read as rows of their batch:

    with rows_join(True):
        rows = rows_of_one(32, (3, 96, 96), torch.uint8)  # by whoever reads samples
        batch = joined(rows.tensors)  # by whoever stacks them: no copy, if all are there in order
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from math import prod
from operator import is_
from typing import NamedTuple, Protocol

import torch

_FEWEST = 4096  # bytes; smaller tensors are copied


class Rows(NamedTuple):
    """Tensors that lie one behind the other."""

    tensors: Sequence[torch.Tensor]
    data: memoryview  # the bytes of all of them, writable


class Place(Protocol):
    """Memory that the tensors of one batch may be made in."""

    def take(self, num_bytes: int) -> memoryview | None:
        """Return so many bytes that nobody else has; None if they are not there."""
        ...


class _Here(threading.local):  # code of the user's may make batches in threads of its own
    place: Place | None = None
    # Tensors with their rows, by the `id` of the first row; None: none are wanted.
    wholes: dict[int, tuple[Sequence[torch.Tensor], torch.Tensor]] | None = None


_HERE = _Here()


@contextlib.contextmanager
def making_in(place: Place | None) -> Iterator[None]:
    """Make tensors in a place, in this thread; None: in ordinary memory."""
    _HERE.place = place
    try:
        yield
    finally:
        _HERE.place = None


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a contiguous tensor on the CPU with any contents; its memory cannot be resized."""
    num_bytes = prod(shape) * dtype.itemsize
    if _HERE.place is not None and num_bytes >= _FEWEST:
        memory = _HERE.place.take(num_bytes)
        if memory is not None:
            return torch.frombuffer(memory, dtype=dtype).reshape(*shape)
    return torch.empty(*shape, dtype=dtype, device="cpu")  # whatever the default device is


@contextlib.contextmanager
def rows_join(wanted: bool) -> Iterator[None]:
    """Let samples be read as rows of one tensor, in this thread, if that is wanted.

    Only where nobody but us sees the samples of a batch: who keeps one would keep them all.
    """
    _HERE.wholes = {} if wanted else None
    try:
        yield
    finally:
        _HERE.wholes = None


def rows_of_one(count: int, shape: Sequence[int], dtype: torch.dtype) -> Rows | None:
    """Return `count` tensors of a shape, any contents, that are the rows of one.

    None if they cannot join, or are not large enough for it to pay.
    """
    if _HERE.wholes is None or prod(shape) * dtype.itemsize < _FEWEST or not count:
        return None
    whole = empty((count, *shape), dtype)
    rows = whole.unbind(0)
    _HERE.wholes[id(rows[0])] = rows, whole
    return Rows(rows, whole.reshape(-1).view(torch.uint8).numpy().data)


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the tensor that these are the rows of, all and in order; None if they are not."""
    rows, whole = (_HERE.wholes or {}).get(id(tensors[0]), ((), None))
    return whole if len(rows) == len(tensors) and all(map(is_, rows, tensors)) else None
