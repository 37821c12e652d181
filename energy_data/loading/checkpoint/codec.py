"""Compact text for the bulky parts of a state: compressed JSON and integers in base 85."""

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

MAX_REFS = 1 << 24  # references pending in a lane; more indicate a damaged number
MAX_BYTES = 1 << 28  # a state is small: more than this, decompressed, is a bomb
MIN_PACKED = 16  # shorter tuples of integers are smaller as they are

Integers = npt.NDArray[np.int64]


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


def pack_value(value: Any) -> str | None:
    """Return a long tuple of integers, or of references to samples, as text; None for the rest.

    A reference to a large dataset costs about 6 bytes: number k of all references is one column,
    stored as differences to its least value, byte by byte, because leaves, epochs and the upper
    bytes of sample numbers hardly differ.
    """
    if not isinstance(value, tuple) or not value:
        return None
    if _are_integers(value):
        packed: Any = _pack_column(np.array(value, np.int64)) if len(value) >= MIN_PACKED else None
    elif all(isinstance(ref, tuple) and _are_integers(ref) for ref in value):
        packed = _pack_refs(value)
    else:
        return None
    return None if packed is None else json.dumps(packed, separators=(",", ":"))


def _are_integers(value: tuple[Any, ...]) -> bool:
    return {*map(type, value)} <= {int}


def unpack_value(text: str) -> tuple[Any, ...]:
    """Return what `pack_value` packed. StateError if the text is damaged."""
    try:
        packed = json.loads(text)
        if isinstance(packed, list):
            return tuple(_unpack_column(packed).tolist())
        return _unpack_refs(packed)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"state: a packed field is damaged ({error}).") from error


def _pack_refs(refs: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    widths = np.array([len(ref) for ref in refs], np.int64)
    table = np.zeros((len(refs), int(widths.max())), np.int64)
    for width in np.unique(widths).tolist():
        alike = np.flatnonzero(widths == width)
        table[alike, :width] = [refs[place] for place in alike.tolist()]
    return {
        "widths": _pack_column(widths),
        "refs": [_pack_column(column) for column in table.T],
    }


def _unpack_refs(packed: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    widths = _unpack_column(packed["widths"])
    columns = [_unpack_column(column) for column in packed["refs"]]
    table = np.stack(columns, axis=1) if columns else np.zeros((len(widths), 0), np.int64)
    if len(table) != len(widths):
        raise ValueError(f"{len(table)} references, {len(widths)} widths")
    if not 0 <= widths.min() <= widths.max() == table.shape[1]:
        raise ValueError(f"references of {widths.min()} to {widths.max()} of {table.shape[1]}")
    return tuple(
        tuple(ref[:width]) for ref, width in zip(table.tolist(), widths.tolist(), strict=True)
    )


def _pack_column(column: Integers) -> list[Any]:
    least = int(column.min())
    delta = (column - column.min()).view(np.uint64)  # right also where int64 wraps around
    size = next(size for size in (1, 2, 4, 8) if int(delta.max()) >> (8 * size) == 0)
    data = delta.astype(f"<u{size}").view(np.uint8).reshape(-1, size).T.tobytes()
    return [least, size, len(column), _deflate(data) if int(delta.max()) else ""]


def _unpack_column(packed: Sequence[Any]) -> Integers:
    least, size, length, text = packed
    if not text:
        if not 0 <= length <= MAX_REFS:
            raise ValueError(f"{length} equal values")
        return np.full(length, least, np.int64)
    data = np.frombuffer(_unpack(text), np.uint8).reshape(size, length).T
    delta = np.ascontiguousarray(data).view(f"<u{size}")[:, 0]
    return delta.astype(np.uint64).view(np.int64) + np.int64(least)


def _deflate(data: bytes) -> str:
    # Takes a sixteenth of the time of bz2, and is smaller where there is little to gain.
    return b85encode(zlib.compress(data)).decode()


def _pack(data: bytes) -> str:
    # bz2 packs digits, of which a state mostly consists, 10 % smaller than zlib.
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
