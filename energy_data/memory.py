"""Memory for the tensors of a batch: ordinary, or, in a worker, where the batch will travel.

A tensor that is made in its place need not be copied there. Nor need the tensors of samples be that
are read as rows of their batch:

    with rows_join(True):
        rows, data = rows_of_one(32, (3, 96, 96), torch.uint8)  # by whoever reads samples
        batch = joined(rows)  # by whoever stacks them: no copy, if all are there in order
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from itertools import repeat
from math import prod
from operator import is_
from typing import Any, NamedTuple, Protocol

import torch

_FEWEST = 4096  # bytes; smaller tensors are copied


class Row(NamedTuple):
    """One row of a tensor, before anybody needs it as a tensor of its own."""

    whole: torch.Tensor
    number: int


class Rows(NamedTuple):
    """All rows of a tensor."""

    rows: list[Row]
    data: memoryview  # their bytes, one row behind the other, writable


class Place(Protocol):
    """Memory that the tensors of one batch may be made in."""

    def take(self, num_bytes: int) -> memoryview | None:
        """Return so many bytes that nobody else has; None if they are not there."""
        ...


class _Here(threading.local):  # code of the user's may make batches in threads of its own
    place: Place | None = None
    # The rows of tensors, by the `id` of the tensor; None: none are wanted.
    rows: dict[int, list[Row]] | None = None


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
    before, _HERE.rows = _HERE.rows, {} if wanted else None
    try:
        yield
    finally:
        _HERE.rows = before


def rows_of_one(count: int, shape: Sequence[int], dtype: torch.dtype) -> Rows | None:
    """Return `count` rows of a tensor [count, *shape], any contents, to be values of samples.

    None if they cannot join, or are not large enough for it to pay.
    """
    if _HERE.rows is None or prod(shape) * dtype.itemsize < _FEWEST or not count:
        return None
    whole = empty((count, *shape), dtype)
    rows = list(map(Row._make, zip(repeat(whole), range(count))))
    _HERE.rows[id(whole)] = rows
    return Rows(rows, whole.reshape(-1).view(torch.uint8).numpy().data)


def joined(values: list[Any]) -> torch.Tensor | list[Any]:
    """Return the tensor that the values are the rows of, all and in order.

    Else the values, with tensors in the place of rows.
    """
    if not _HERE.rows:
        return values
    first = values[0]
    rows = _HERE.rows.get(id(first.whole), []) if type(first) is Row else []
    if len(rows) == len(values) and all(map(is_, rows, values)):
        return rows[0].whole
    return [value.whole[value.number] if type(value) is Row else value for value in values]
