"""What chunks of MosaicML Streaming and of litdata have in common: index.json, and their offsets.

A chunk is the number of its samples, uint32; where each begins and the last one ends, uint32 each;
and the samples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from energy_data.data.files.local import LocalFile, keep_open, version_of
from energy_data.data.files.offsets import BLOCK_ROWS, IndexedFile
from energy_data.errors import SpecError, StructureError

T = TypeVar("T")

INDEX = "index.json"

ADVICE = "Restore it, or write the dataset again."


def read_json(path: str) -> Any:
    """Return what is in a JSON file; None if there is no such file, or it is no JSON.

    It is read again only if it was changed. Nothing in it may be changed.
    """
    version = version_of(path)
    return None if version is None else keep_open(_parse, path, version)


def _parse(path: str, _: object) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def read_index(path: str) -> Mapping[str, Any]:
    """Return an index.json that holds a mapping. StructureError if it is missing or damaged."""
    found = read_json(path)
    if not isinstance(found, dict):
        problem = "is no JSON object" if Path(path).exists() else "is missing"
        raise damaged(path, problem)
    return found


def damaged(path: str, problem: str) -> StructureError:
    """Return the error of an index.json."""
    return StructureError(f"{problem}. {ADVICE}", shard=path)


def find_entry(entries: Mapping[str, T], name: str, path: str) -> T:
    """Return what an index says of a chunk. StructureError if it does not list it."""
    if (found := entries.get(name)) is None:
        problem = f"does not list {name}, which the dataset was prepared with"
        raise StructureError(
            f"{problem}. Restore it, or run `energy-data prepare --force`.", shard=path
        )
    return found


def scan_unlisted(file: LocalFile) -> NoReturn:
    """Raise SpecError: a chunk that is in no index cannot be read."""
    raise SpecError(
        f"{file.path}: the {INDEX} of its folder does not list it. Name the folder of the dataset, "
        f"or restore its {INDEX}."
    )


def wrong_size(path: str, size: int, known: int) -> StructureError:
    """Return the error of a file that has other bytes than its index says."""
    return StructureError(f"has {size} bytes, but {INDEX} says {known}. {ADVICE}", shard=path)


def is_count(value: object) -> bool:
    """Return whether a value of JSON is a whole number in [0, 2**32)."""
    return type(value) is int and 0 <= value < 1 << 32


def read_offsets(file: LocalFile, count: int, block: int) -> IndexedFile:
    """Return a chunk with one block of its offsets.

    count: samples that it must have. Raises StructureError if it has others, or if the offsets are
    not in order, or do not end where the chunk does.
    """
    first, table = block * BLOCK_ROWS, 4 * (count + 2)
    if file.size < table:
        raise _wrong(file, f"has {file.size} bytes, but the offsets of {count} samples {table}")
    found, begin = np.frombuffer(file.read(0, 8), "<u4").tolist()
    if found != count:
        raise _wrong(file, f"begins with the number of its samples, {found}, not {count}")
    end = int.from_bytes(file.read(table - 4, 4), "little")
    if begin < table or end != file.size:
        problem = f"has samples from byte {begin} to {end}, but they are in bytes {table} to"
        raise _wrong(file, f"{problem} {file.size}")
    data = file.read(4 * (first + 1), 4 * (min(count - first, BLOCK_ROWS) + 1))
    offsets = np.frombuffer(data, "<u4")
    if len(back := np.flatnonzero(offsets[1:] < offsets[:-1])):
        raise _wrong(file, f"ends sample {first + int(back[0])} before it begins")
    return IndexedFile(file, offsets.astype(np.uint64), first, file.fd)


def _wrong(file: LocalFile, problem: str) -> StructureError:
    return StructureError(
        f"{problem}. It was cut, or is of another index. {ADVICE}", shard=file.path
    )
