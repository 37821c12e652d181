"""Compact text for the bulky parts of a state: compressed JSON and integer tables in base 85."""

from __future__ import annotations

import bz2
import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from energy_data.errors import StateError

MAX_MARKS = 1 << 24  # pending in all lanes together; more are a damaged number
Integers = npt.NDArray[np.int64]

MAX_BYTES = 1 << 28  # a state is small: more than this, decompressed, is a bomb


def pack_json(value: Any) -> str:
    """Return plain data as compressed text; equal data give equal text."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return _pack(text.encode())


def unpack_json(text: str) -> Any:
    """Return what `pack_json` packed. StateError if it is something else."""
    try:
        return json.loads(_unpack(text))
    except ValueError as error:
        raise StateError(f"state: a packed part is not JSON ({error}). It is damaged.") from error


def pack_table(rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return a table of integers [lanes, n] whose columns hardly differ between rows, small.

    Costs some 2 bytes per integer: each column's least value, and the differences to it.
    """
    table = np.array(rows, np.int64)
    base = table.min(axis=0)
    delta = table - base
    size = next(size for size in (1, 2, 4, 8) if int(delta.max(initial=0)) < 1 << (8 * size - 1))
    return {
        "shape": list(table.shape),
        "base": _pack(base.astype("<i8").tobytes()),
        "delta": _pack(delta.astype(f"<u{size}").tobytes()),
        "size": size,
    }


def unpack_table(packed: dict[str, Any]) -> list[tuple[int, ...]]:
    """Return the rows that `pack_table` packed. StateError if it is something else."""
    try:
        rows, columns = packed["shape"]
        base = np.frombuffer(_unpack(packed["base"]), "<i8")
        delta = np.frombuffer(_unpack(packed["delta"]), f"<u{int(packed['size'])}")
        table: npt.NDArray[np.int64] = delta.reshape(rows, columns).astype(np.int64) + base
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"state: a packed table is damaged ({error}).") from error
    return [tuple(row) for row in table.tolist()]


Marks = tuple[tuple[int, ...], ...]


def pack_marks(rows: Sequence[Marks]) -> dict[str, Any]:
    """Return what is pending in each lane, small: some 6 bytes for a reference to a large dataset.

    Number k of all marks is a column, as differences to the least, byte by byte: in what is pending
    together leaves, epochs and the upper bytes of numbers hardly differ.
    """
    marks = [mark for row in rows for mark in row]
    widths = np.array([len(mark) for mark in marks], np.int64)
    table = np.zeros((len(marks), int(widths.max())), np.int64)
    for width in np.unique(widths).tolist():
        alike = np.flatnonzero(widths == width)
        table[alike, :width] = [marks[place] for place in alike.tolist()]
    counts = np.array([len(row) for row in rows], np.int64)
    return {
        "counts": _pack_column(counts),
        "widths": _pack_column(widths),
        "marks": [_pack_column(column) for column in table.T],
    }


def unpack_marks(packed: Mapping[str, Any]) -> list[Marks]:
    """Return what `pack_marks` packed. StateError if it is something else."""
    try:
        counts, widths = _unpack_column(packed["counts"]), _unpack_column(packed["widths"])
        columns = [_unpack_column(column) for column in packed["marks"]]
        table = np.stack(columns, axis=1) if columns else np.zeros((len(widths), 0), np.int64)
        if len(table) != len(widths) or counts.sum() != len(widths) or counts.min() < 0:
            raise ValueError(f"{len(table)} marks, {len(widths)} widths, counts {counts.tolist()}")
        if not 0 <= widths.min() <= widths.max() == table.shape[1]:
            raise ValueError(f"marks of {widths.min()} to {widths.max()} of {table.shape[1]}")
        marks = [
            tuple(mark[:width]) for mark, width in zip(table.tolist(), widths.tolist(), strict=True)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"state: packed references are damaged ({error}).") from error
    ends = np.cumsum(counts).tolist()
    return [
        tuple(marks[end - count : end]) for end, count in zip(ends, counts.tolist(), strict=True)
    ]


def _pack_column(column: Integers) -> list[Any]:
    least = int(column.min())
    delta = column.astype(np.uint64) - np.uint64(least)
    size = next(size for size in (1, 2, 4, 8) if int(delta.max()) >> (8 * size) == 0)
    data = delta.astype(f"<u{size}").view(np.uint8).reshape(-1, size).T.tobytes()
    return [least, size, len(column), _deflate(data) if int(delta.max()) else ""]


def _unpack_column(packed: Sequence[Any]) -> Integers:
    least, size, length, text = packed
    if not text:
        if not 0 <= length <= MAX_MARKS:
            raise ValueError(f"{length} equal values")
        return np.full(length, least, np.int64)
    data = np.frombuffer(_unpack(text), np.uint8).reshape(size, length).T
    delta = np.ascontiguousarray(data).view(f"<u{size}")[:, 0]
    return (delta.astype(np.uint64) + np.uint64(least)).astype(np.int64)


def _deflate(data: bytes) -> str:
    # a sixteenth of the time of bz2, and smaller where there is little to gain
    return b85encode(zlib.compress(data)).decode()


def _pack(data: bytes) -> str:
    # bz2 takes digits a tenth smaller than zlib, and a state has hardly anything else
    return b85encode(bz2.compress(data)).decode()


def _unpack(text: str) -> bytes:
    try:
        packed = b85decode(text)
        engine = bz2.BZ2Decompressor() if packed[:3] == b"BZh" else zlib.decompressobj()
        data = engine.decompress(packed, MAX_BYTES)
    except (OSError, TypeError, ValueError, zlib.error) as error:
        raise StateError(f"state: a packed part is damaged ({error}).") from error
    if not engine.eof:
        raise StateError("state: a packed part is cut off, or larger than any state.")
    return data
