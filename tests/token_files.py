"""Files of tokens for the tests, written from their published layouts."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "uint16": 8}


def write_megatron(path: Path, documents: list[list[int]], dtype: str = "uint16") -> Path:
    """Write path.bin and path.idx as `megatron.core.datasets.indexed_dataset` does."""
    kind = np.dtype(dtype)
    lengths = np.array([len(one) for one in documents], "<i4")
    pointers = (np.cumsum(lengths, dtype="<i8") - lengths) * kind.itemsize
    flat(documents).astype(kind.newbyteorder("<")).tofile(path.with_suffix(".bin"))
    bounds = np.arange(len(documents) + 1, dtype="<i8")
    header = b"MMIDIDX\x00\x00" + struct.pack(
        "<QBQQ", 1, CODES[dtype], len(documents), len(documents) + 1
    )
    arrays = b"".join(array.tobytes() for array in (lengths, pointers.astype("<i8"), bounds))
    path.with_suffix(".idx").write_bytes(header + arrays)
    return path.with_suffix(".bin")


def write_datatrove(path: Path, documents: list[list[int]], dtype: str = "uint16") -> Path:
    """Write path.ds and path.ds.index as `datatrove.pipeline.tokens` does."""
    file = path.with_suffix(".ds")
    flat(documents).astype(np.dtype(dtype).newbyteorder("<")).tofile(file)
    np.cumsum([len(one) for one in documents], dtype="<u8").tofile(f"{file}.index")
    return file


def flat(documents: list[list[int]]) -> np.ndarray:
    return np.array([token for one in documents for token in one], np.int64)


def some_documents(count: int, longest: int = 30, shortest: int = 1) -> list[list[int]]:
    rng = np.random.default_rng(count)
    return [
        rng.integers(0, 60_000, rng.integers(shortest, longest + 1)).tolist() for _ in range(count)
    ]
