"""Groups of rows in memory, column by column; large ones piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from energy_data.data.files.recent import Make
from energy_data.data.tables.files import DamagedGroupError, TableFile, pyarrow

_BYTES_PER_VALUE = 64  # of an object and its place in a list

Take = Callable[[Sequence[int]], Sequence[Any]]
"""Returns the values of rows; those that can be changed are made for the caller."""

RowGroup = Mapping[str, Take]
"""The columns of a group in memory."""

MakeGroup = Make[RowGroup | str]
"""Returns a group, or why it cannot be decoded, and about how many bytes it takes."""


def read_group(file: TableFile, group: int, names: Sequence[str]) -> tuple[RowGroup | str, int]:
    """Return columns of a group, or why it cannot be decoded, and about how many bytes they take.

    Raises StructureError if the file cannot be read.
    """
    try:
        return _converted(group, file.read(group, list(names)), names)
    except DamagedGroupError as error:
        return error.problem, 0


def read_pieces(
    file: TableFile, group: int, names: Sequence[str], rows: int
) -> Iterator[MakeGroup]:
    """Yield what makes each piece of a large group, as `read_group` does; behind damage, problems.

    rows: of each piece. Raises StructureError if the file cannot be read.
    """
    try:
        for piece in file.pieces(group, list(names), rows):
            yield partial(_converted, group, piece, names)
            del piece  # only the pages are held
    except DamagedGroupError as error:
        problem = error.problem
        while True:  # no later piece can be read either
            yield lambda: (problem, 0)


def _converted(group: int, table: Any, names: Sequence[str]) -> tuple[RowGroup | str, int]:
    table = table.combine_chunks()
    try:
        columns = {name: _column(table.column(name)) for name in names}
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - damaged data can raise any error
        return f"group {group} cannot be converted: {error}. Write the file again.", 0
    return columns, table.nbytes + _BYTES_PER_VALUE * table.num_rows * len(names)


def _column(column: Any) -> Take:
    # A group of more than 2 GiB is several chunks.
    return _values(column.chunk(0)) if column.num_chunks == 1 else _singly(column)


def _values(array: Any) -> Take:
    kind, types = array.type, pyarrow().types
    if types.is_list(kind) or types.is_large_list(kind):
        if _is_number(kind.value_type):
            return _each(_numbers(array, array.offsets.to_numpy()))
    elif types.is_fixed_size_list(kind):
        if _is_number(kind.value_type):
            at = np.arange(len(array) + 1) + array.offset
            return _each(_numbers(array, at * kind.list_size))
    elif types.is_dictionary(kind):
        if not types.is_nested(kind.value_type):
            with suppress(UnicodeDecodeError):
                return _places(_of_dictionary(array))
    elif not types.is_nested(kind):
        try:
            return _places(array.to_pylist())
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001, S110 - of one row: the others are read one by one
            pass
    return _singly(array)


def _singly(array: Any) -> Take:
    return lambda rows: [array[row].as_py() for row in rows]


def _each(value: Callable[[int], Any]) -> Take:
    return lambda rows: [value(row) for row in rows]


def _places(values: Sequence[Any]) -> Take:
    # `itemgetter` takes half of the time of a loop, but returns one value as itself.
    return lambda rows: itemgetter(*rows)(values) if len(rows) > 1 else [values[rows[0]]]


def _of_dictionary(array: Any) -> Sequence[Any]:
    if len(array.dictionary) > len(array):  # of a large one, a piece has few values
        return list(array.dictionary_decode().to_pylist())
    values = array.dictionary.to_pylist()
    return [None if number is None else values[number] for number in array.indices.to_pylist()]


def _is_number(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind)) and kind != pyarrow().uint64()


def _numbers(array: Any, offsets: Any) -> Callable[[int], Any]:
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
    is_unsigned = numbers.dtype.kind == "u" and numbers.dtype != np.uint8
    dtype = np.dtype(np.int64) if is_unsigned else numbers.dtype

    def value(row: int) -> Any:
        if valid is not None and not valid[row]:
            return None
        first, end = at[row], at[row + 1]
        if nulls is not None and nulls[end] > nulls[first]:
            return array[row].as_py()
        return torch.from_numpy(numbers[first:end].astype(dtype))

    return value
