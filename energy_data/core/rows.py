"""Tensors of samples that are read into their batch: rows of one tensor, which becomes the batch.

    rows = new_rows(32, (3, 96, 96), torch.uint8)  # by whoever reads: into rows.data
    value = make_row((rows.whole, 5))  # in a sample
    batch = gathered(values)  # by whoever makes the batch: the tensor, without a copy

Nobody but us may see a row: who keeps one keeps them all, and another may be moved over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat
from math import prod
from operator import is_
from typing import Any, NamedTuple

import torch

from energy_data.core.memory import empty_bytes

_FEWEST = 4096  # bytes of a row; to copy less costs nothing


class Row(NamedTuple):
    """One row of a tensor, before anybody needs it as a tensor of its own."""

    whole: torch.Tensor
    number: int

    @property
    def tensor(self) -> torch.Tensor:
        """The row, over the memory of the whole."""
        return self.whole[self.number]


make_row = partial(tuple.__new__, Row)  # of (whole, number), in two thirds of the time of Row(...)


class Rows(NamedTuple):
    """All rows of a tensor."""

    whole: torch.Tensor  # [rows, ...]
    data: memoryview  # its bytes, one row behind the other, writable


def new_rows(count: int, shape: Sequence[int], dtype: torch.dtype) -> Rows | None:
    """Return `count` rows with any contents, to be values of samples; None if it does not pay."""
    num_bytes = prod(shape) * dtype.itemsize
    if not count or num_bytes < _FEWEST:
        return None
    data = empty_bytes(num_bytes * count)
    whole = torch.frombuffer(data, dtype=dtype).resize_(count, *shape)  # `reshape` gives a view
    return Rows(whole, data)


def gathered(values: Sequence[Any]) -> torch.Tensor | None:
    """Return the values stacked: the tensor that they are rows of, if there are as many of them.

    Where samples were left out, the others are moved up in it. None if some values are no rows, as
    then rows of the same tensor may lie elsewhere, or if more moves are necessary.
    """
    if set(map(type, values)) != {Row}:
        return None
    wholes, numbers = zip(*values, strict=True)
    whole: torch.Tensor = wholes[0]
    if len(values) != whole.shape[0]:
        return None
    if numbers == tuple(range(len(values))) and all(map(is_, wholes, repeat(whole))):
        return whole
    moves: list[tuple[int, torch.Tensor]] = []
    for place, row in enumerate(values):
        if row.whole is whole:
            if row.number == place:
                continue
            if row.number < place:
                return None  # it may be overwritten by then
        elif row.whole.shape[1:] != whole.shape[1:] or row.whole.dtype != whole.dtype:
            return None
        moves.append((place, row.tensor))
    for place, tensor in moves:
        whole[place].copy_(tensor)
    return whole


def as_tensors(values: Sequence[Any]) -> list[Any]:
    """Return the values, with tensors in the place of rows, over the memory that all share."""
    return [value.tensor if type(value) is Row else value for value in values]


def owned(values: Sequence[Any]) -> list[Any]:
    """Return the values, with tensors that have memory of their own in the place of rows."""
    return [value.tensor.clone() if type(value) is Row else value for value in values]


def without_rows(sample: Any) -> Any:
    """Return a sample that code of the user's may see after all."""
    if type(sample) is dict and Row in set(map(type, sample.values())):
        return dict(zip(sample, owned(list(sample.values())), strict=True))
    return sample
