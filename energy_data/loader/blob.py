"""Compact text for the bulky parts of a state: compressed JSON and integer tables in base 85."""

from __future__ import annotations

import bz2
import json
from base64 import b85decode, b85encode
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from energy_data.errors import StateError

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


def _pack(data: bytes) -> str:
    # bz2 takes digits a tenth smaller than zlib, and a state has hardly anything else
    return b85encode(bz2.compress(data)).decode()


def _unpack(text: str) -> bytes:
    try:
        engine = bz2.BZ2Decompressor()
        data = engine.decompress(b85decode(text), MAX_BYTES)
    except (OSError, TypeError, ValueError) as error:
        raise StateError(f"state: a packed part is damaged ({error}).") from error
    if not engine.eof:
        raise StateError("state: a packed part is cut off, or larger than any state.")
    return data
