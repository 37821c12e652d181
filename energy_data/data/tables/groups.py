"""Groups of rows as columns of values, those used last in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from energy_data.data.tables.files import TableFile, pyarrow

LARGEST_CACHE = 1 << 28  # bytes of groups that a thread keeps; at least two groups

Column = Sequence[Any] | Callable[[int], Any]
"""The values of a group by row; or, where they can be changed, what makes one for its caller."""


class _Groups(threading.local):
    """Groups by file and columns, of each thread its own: a forked process may inherit no lock."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: OrderedDict[tuple[object, ...], tuple[list[Column], int]] = OrderedDict()
        self._bytes = 0
        self.num_read = 0  # groups, for tests that count

    def columns(self, file: TableFile, group: int, names: tuple[str, ...]) -> list[Column]:
        """Return the columns of a group. StructureError if it cannot be read."""
        key = file.path, file.version, group, names
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept[0]
        table = file.read(group, list(names)).combine_chunks()
        columns = [_column(table.column(n)) for n in range(table.num_columns)]
        self.num_read += 1
        self._kept[key] = columns, table.nbytes
        self._bytes += table.nbytes
        while self._bytes > LARGEST_CACHE and len(self._kept) > 2:
            _, (_, size) = self._kept.popitem(last=False)
            self._bytes -= size
        return columns


GROUPS = _Groups()


def _column(column: Any) -> Column:
    """Return the values of a column by row."""
    arrow = pyarrow()
    array = column.chunk(0) if column.num_chunks else arrow.array([], column.type)
    kind = array.type
    if arrow.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    types = arrow.types
    if types.is_list(kind) or types.is_large_list(kind):
        if _is_number(kind.value_type) and not array.null_count and not array.values.null_count:
            return _numbers(array.values, array.offsets.to_numpy())
    elif types.is_fixed_size_list(kind):
        size = kind.list_size
        if _is_number(kind.value_type) and not array.null_count and not array.values.null_count:
            first = array.offset * size
            return _numbers(array.values, np.arange(len(array) + 1) * size + first)
    elif not types.is_nested(kind):
        with suppress(UnicodeDecodeError):  # in one row: the others are read one by one
            values: Sequence[Any] = array.to_pylist()
            return values
    return lambda row: array[row].as_py()


def _is_number(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind)) and kind != pyarrow().uint64()


def _numbers(values: Any, offsets: Any) -> Column:
    """Return lists of numbers as tensors; torch has few operations on unsigned ones."""
    numbers, at = values.to_numpy(), offsets.tolist()
    if numbers.dtype.kind == "u" and numbers.dtype != np.uint8:
        numbers = numbers.astype(np.int64)
    return lambda row: torch.from_numpy(numbers[at[row] : at[row + 1]].copy())
