"""Index files: the offset of each sample in a file, and where the last one ends, uint64 each.

An index stands next to its file, or in the user's cache folder if that folder cannot be written.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from energy_data.core.arrays import Int64s
from energy_data.data.files.local import LocalFile, open_file, write_atomically
from energy_data.errors import SpecError, StructureError
from energy_data.remote.client import fetch_whole
from energy_data.remote.mirror_paths import is_mirrored

SUFFIX = ".idx"
BLOCK_ROWS = 16384  # samples of a block: what is read of an index at once, and kept in memory

Offsets = npt.NDArray[np.uint64]


def cache_folder(name: str) -> Path:
    """Return a folder of ours in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "energy_data", name)


def ensure_index(
    path: str, fits: Callable[[int, int], bool], scan: Callable[[LocalFile], Offsets]
) -> str:
    """Return the path of an index that is as new as its file; write one if there is none.

    fits: called with the last offset and the size of the file; whether they belong together.
    scan: returns the offsets of a file without an index.
    """
    real = os.path.realpath(path).encode("utf-8", "surrogateescape")
    name = hashlib.blake2b(real, digest_size=16).hexdigest()
    places = path + SUFFIX, str(cache_folder("index") / f"{name}{SUFFIX}")
    facts = Path(path).stat()
    for index in places:
        try:
            found = Path(index).stat()
            # Filling a file in a cache sets its time; its index is removed when it is replaced.
            is_old = found.st_mtime_ns < facts.st_mtime_ns and not is_mirrored(path)
            if found.st_size < 8 or found.st_size % 8 or is_old:
                continue
            fetch_whole(index)
            with Path(index).open("rb") as file:
                file.seek(-8, os.SEEK_END)
                if fits(int.from_bytes(file.read(8), "little"), facts.st_size):
                    return index
        except OSError:
            continue
    return write_index(path, scan(open_file(path, is_streamed=True)), places)


def num_samples(index: str) -> int:
    """Return the number of samples that an index has."""
    return Path(index).stat().st_size // 8 - 1


class IndexedFile(NamedTuple):
    """An open file, and one block of its index. The C part reads it as a plain tuple."""

    file: LocalFile
    offsets: Offsets  # uint64 [samples of the block + 1]
    first: int  # number in the file of the first of these samples
    fd: int  # of the file


def bounds_of(
    open_block: Callable[[int], IndexedFile], rows: Int64s
) -> tuple[LocalFile, Offsets, Offsets]:
    """Return a file, the offsets of some samples of it, and those after them.

    open_block: opens the file, with the block of its index that has a row. rows: sorted, at least
    one.
    """
    begins, ends = np.empty((2, len(rows)), np.uint64)
    cuts = np.flatnonzero(np.diff(rows // BLOCK_ROWS)) + 1
    for first, end in pairwise([0, *cuts.tolist(), len(rows)]):
        file, offsets, before, _ = open_block(int(rows[first]))
        numbers = rows[first:end] - before
        begins[first:end], ends[first:end] = offsets[numbers], offsets[numbers + 1]
    return file, begins, ends


def read_block(
    index: str, file: LocalFile, count: int, number: int, advice: str
) -> tuple[IndexedFile, int]:
    """Return a file with block `number` of its index, and where its last sample ends.

    The index is not mapped into memory: a process that reads a map of a file that was cut dies.

    count: samples that the index must have. advice: what to do if the index is missing or has
    another size, which is a StructureError.
    """
    first = number * BLOCK_ROWS
    try:
        found = LocalFile(index)
    except OSError as error:
        problem = f"its index {index} cannot be read: {error}. {advice}"
        raise StructureError(problem, shard=file.path) from error
    if found.size != (count + 1) * 8:
        problem = f"has {found.size} bytes, but {count} samples need {(count + 1) * 8}"
        raise StructureError(f"its index {index} {problem}. {advice}", shard=file.path)
    data = found.read(first * 8, (min(count - first, BLOCK_ROWS) + 1) * 8)
    end = int.from_bytes(found.read(count * 8, 8), "little")
    return IndexedFile(file, np.frombuffer(data, "<u8"), first, file.fd), end


def write_index(path: str, offsets: Offsets, places: Sequence[str]) -> str:
    """Write the index of a file to the first of `places` that can be written; return that.

    The index gets the permissions of the file. Raises SpecError if no place can be written.
    """
    data, mode = offsets.astype("<u8").tobytes(), Path(path).stat().st_mode
    for place in places:
        try:
            write_atomically(place, data, mode)
            return place
        except OSError as error:  # read-only, or full
            reason = error.strerror
    advice = ", or set XDG_CACHE_HOME to a folder that is" if len(places) > 1 else ""
    raise SpecError(
        f"{path}: its index cannot be written to {' or '.join(places)}: {reason}. "
        f"Make the folder writable{advice}."
    )
