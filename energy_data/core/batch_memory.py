"""Memory of batches: where their tensors are made, and samples that are rows of such a tensor.

A worker lets tensors be made in the slot in which the batch will travel, so that they need not be
copied there. Large tensors of samples are read directly into the tensor of their batch:

    block = new_rows(32, (3, 96, 96), torch.uint8)  # the reader writes to block.data
    value = make_row((block.tensor, 5))  # a value of a sample
    batch = stack_rows(values)  # the collation: returns block.tensor, without a copy

User code must never see a row: keeping one keeps all of them, and another may be moved over it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from math import prod
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

_SMALLEST = 4096  # bytes of a tensor or row; copying less costs nothing


class Allocator(Protocol):
    """Memory in which the tensors of one batch may be made."""

    def take(self, num_bytes: int) -> memoryview | None:
        """Return `num_bytes` unused bytes, or None if there are not so many."""
        ...


class _Current(threading.local):  # user code may make batches in threads of its own
    allocator: Allocator | None = None


_CURRENT = _Current()


@contextmanager
def allocate_in(allocator: Allocator | None) -> Iterator[None]:
    """Let this thread make tensors with `allocator`, or in ordinary memory if it is None."""
    _CURRENT.allocator = allocator
    try:
        yield
    finally:
        _CURRENT.allocator = None


def new_batch_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialized, contiguous tensor on the CPU, for the batch that is being made.

    In a worker process it is made in the shared memory in which the batch travels to the trainer,
    so it is not copied. That memory is used again for later batches: the kernel need not find new
    pages. Elsewhere, and if it is small or does not fit, it is that of `torch.empty`.

    Return the tensor, or a view of it, as a part of the batch, and do not change it afterwards. Its
    memory cannot be resized.
    """
    import torch

    memory = _taken(prod(shape) * dtype.itemsize)
    if memory is not None:
        return torch.frombuffer(memory, dtype=dtype).reshape(*shape)
    return torch.empty(*shape, dtype=dtype, device="cpu")  # whatever the default device is


def _taken(num_bytes: int) -> memoryview | None:
    allocator = _CURRENT.allocator
    if allocator is None or num_bytes < _SMALLEST:
        return None
    return allocator.take(num_bytes)


class TensorRow(NamedTuple):
    """The value of one sample: a row of the tensor of its batch."""

    block: torch.Tensor
    number: int

    @property
    def tensor(self) -> torch.Tensor:
        """The row, a view of the block."""
        return self.block[self.number]


make_row = partial(tuple.__new__, TensorRow)  # of (block, number); 1.5 times as fast as the class


class RowBlock(NamedTuple):
    """A tensor whose rows are values of samples."""

    tensor: torch.Tensor  # [rows, ...]
    data: memoryview  # its bytes in C order, writable


def new_rows(count: int, shape: Sequence[int], dtype: torch.dtype) -> RowBlock | None:
    """Return `count` rows with any contents; None if the rows are too small to be worth it."""
    import torch

    num_bytes = prod(shape) * dtype.itemsize
    if not count or num_bytes < _SMALLEST:
        return None
    memory = _taken(num_bytes * count)
    data = np.empty(num_bytes * count, np.uint8).data if memory is None else memory
    tensor = torch.frombuffer(data, dtype=dtype).resize_(count, *shape)  # `reshape` gives a view
    return RowBlock(tensor, data)


def stack_rows(values: Sequence[Any]) -> torch.Tensor | None:
    """Return the values stacked without a copy: the block of the first, if it has as many rows.

    If samples were left out, rows are moved within the block. Return None if a value is not a row,
    since rows of the same block may then be in use elsewhere, or if a row would be overwritten
    before it is moved.
    """
    if set(map(type, values)) != {TensorRow}:
        return None
    blocks, numbers = zip(*values, strict=True)
    block: torch.Tensor = blocks[0]
    if len(values) != block.shape[0]:
        return None
    if numbers == tuple(range(len(values))) and all(map(is_, blocks, repeat(block))):
        return block
    moves: list[tuple[int, torch.Tensor]] = []
    for place, row in enumerate(values):
        if row.block is block:
            if row.number == place:
                continue
            if row.number < place:
                return None
        elif row.block.shape[1:] != block.shape[1:] or row.block.dtype != block.dtype:
            return None
        moves.append((place, row.tensor))
    for place, tensor in moves:
        block[place].copy_(tensor)
    return block


def as_tensors(values: Sequence[Any]) -> list[Any]:
    """Return the values with each row as a view of its block."""
    return [value.tensor if type(value) is TensorRow else value for value in values]


def detach(values: Sequence[Any]) -> list[Any]:
    """Return the values with each row as a tensor that has its own memory."""
    return [value.tensor.clone() if type(value) is TensorRow else value for value in values]
