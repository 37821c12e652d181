"""Groups of rows as dicts of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from energy_data.data.tables.files import DamagedGroupError, TableFile, pyarrow

_BYTES_PER_ROW, _BYTES_PER_VALUE = 120, 64  # of a dict, and of an object and its place there

Make = Callable[[int], Any]
"""Makes the value of a row for its caller."""


class RowGroup(NamedTuple):
    """The rows of a group in memory."""

    rows: Sequence[Mapping[str, Any]]  # values by column; None where `made` has the column
    made: Mapping[str, Make]  # columns whose values can be changed, or are no good in some rows


def read_group(file: TableFile, group: int, names: tuple[str, ...]) -> tuple[RowGroup, int]:
    """Return columns of a group, and about how many bytes they take.

    Raises DamagedGroupError if it cannot be decoded, StructureError if the file cannot be read.
    """
    table = file.read(group, list(names)).combine_chunks()
    try:
        columns = {name: _column(table.column(name)) for name in names}
    except MemoryError:
        raise
    except Exception as error:
        problem = f"group {group} cannot be converted: {error}"
        raise DamagedGroupError(f"{problem}. Write the file again.", shard=file.path) from error
    made = {name: column for name, column in columns.items() if callable(column)}
    kept = [
        repeat(None, table.num_rows) if callable(column) else column for column in columns.values()
    ]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*kept, strict=True)]
    size = table.nbytes + len(rows) * (_BYTES_PER_ROW + _BYTES_PER_VALUE * len(names))
    return RowGroup(rows, made), size


def _column(column: Any) -> Sequence[Any] | Make:
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


def _numbers(array: Any, offsets: Any) -> Make:
    """Return lists of numbers as tensors; those with nulls as lists. None for a null.

    Unsigned integers become int64, as torch has few operations on them.
    """
    import torch

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
