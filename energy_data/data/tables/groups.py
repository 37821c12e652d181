"""Groups of rows as columns of values, those used last in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from energy_data.data.files.recent import RECENT
from energy_data.data.tables.files import DamagedGroupError, TableFile, pyarrow

_BYTES_PER_VALUE = 40  # of an object of Python and its place in a list

Column = Sequence[Any] | Callable[[int], Any]
"""The values of a group by row; or, where they can be changed, what makes one for its caller."""


def columns_of(file: TableFile, group: int, names: tuple[str, ...]) -> list[Column]:
    """Return the columns of a group, those used last from memory.

    Raises DamagedGroupError if it cannot be decoded, StructureError if the file cannot be read.
    """
    return RECENT.get(
        (file.path, file.version, group, names), lambda: _columns_of(file, group, names)
    )


def _columns_of(file: TableFile, group: int, names: tuple[str, ...]) -> tuple[list[Column], int]:
    """Return the columns of a group, and about how many bytes they take."""
    table = file.read(group, list(names)).combine_chunks()
    try:
        columns = [_column(table.column(name)) for name in names]
    except MemoryError:
        raise
    except Exception as error:
        problem = f"group {group} cannot be converted: {error}"
        raise DamagedGroupError(f"{problem}. Write the file again.", shard=file.path) from error
    return columns, table.nbytes + _BYTES_PER_VALUE * table.num_rows * table.num_columns


def _column(column: Any) -> Column:
    """Return the values of a column by row."""
    arrow = pyarrow()
    array = column.chunk(0) if column.num_chunks else arrow.array([], column.type)
    kind, types = array.type, arrow.types
    if types.is_list(kind) or types.is_large_list(kind):
        if _is_number(kind.value_type):
            return _numbers(array, array.offsets.to_numpy())
    elif types.is_fixed_size_list(kind):
        if _is_number(kind.value_type):
            at = np.arange(len(array) + 1) + array.offset
            return _numbers(array, at * kind.list_size)
    elif types.is_dictionary(kind):
        if not types.is_nested(kind.value_type):
            with suppress(UnicodeDecodeError):
                return _of_dictionary(array)
    elif not types.is_nested(kind):
        try:
            values: Sequence[Any] = array.to_pylist()
            return values
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001, S110 - of one row: the others are read one by one
            pass
    return lambda row: array[row].as_py()


def _of_dictionary(array: Any) -> Sequence[Any]:
    values = array.dictionary.to_pylist()
    return [None if number is None else values[number] for number in array.indices.to_pylist()]


def _is_number(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind)) and kind != pyarrow().uint64()


def _numbers(array: Any, offsets: Any) -> Column:
    """Return lists of numbers as tensors; those with nulls as lists. None for a null.

    Unsigned integers become int64, as torch has few operations on them.
    """
    values, at = array.values, offsets.tolist()
    # Nulls before each value, so that what a list becomes depends on itself alone.
    nulls = None
    if values.null_count:
        nulls = np.concatenate([[0], np.cumsum(values.is_null().to_numpy(zero_copy_only=False))])
        values = values.fill_null(0)
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    numbers = values.to_numpy()
    if numbers.dtype.kind == "u" and numbers.dtype != np.uint8:
        numbers = numbers.astype(np.int64)

    def value(row: int) -> Any:
        if valid is not None and not valid[row]:
            return None
        first, end = at[row], at[row + 1]
        if nulls is not None and nulls[end] > nulls[first]:
            return array[row].as_py()
        return torch.from_numpy(numbers[first:end].copy())

    return value
