"""`x.jsonl.idx`: where each line that holds a sample begins, and where the file ends (uint64 each).

The format is Energon's: a sample reaches to the next one, over the empty lines between them; empty
lines at the beginning of the file belong to the first.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energy_data.data.files.local import LocalFile, drop_changed, open_anew
from energy_data.data.files.offsets import (
    SUFFIX,
    Offsets,
    index_in_cache,
    last_offset,
    write_index,
)
from energy_data.errors import StructureError

_CHUNK = 1 << 22  # bytes looked through at once
_NEWLINE, _OPEN, _CLOSE, _RETURN = b"\n{}\r"
_AGAIN = "Run `energy-data prepare` on the file."


def prepare_jsonl(path: str) -> int:
    """Write the index next to a JSONL file; return the number of samples."""
    offsets = scan_lines(open_anew(path))
    write_index(path, offsets, [path + SUFFIX])
    return len(offsets) - 1


def find_jsonl_index(path: str) -> str:
    """Return the path of an index of a JSONL file; write one if there is none, or an older one."""
    places = (path + SUFFIX, index_in_cache(path))
    size = Path(path).stat().st_size
    for index in places:
        if last_offset(index, path) == size:
            drop_changed(path)
            return index
    return write_index(path, scan_lines(open_anew(path)), places)


def scan_lines(file: LocalFile) -> Offsets:
    """Return what belongs into the index of a JSONL file, uint64 [samples + 1].

    Raises StructureError if there are no samples, or for a line that is no JSON object by its first
    and last character; the text between them is not checked.
    """
    starts = [found for data, at, line in _pieces(file) for found in _samples(data, at, line, file)]
    offsets = np.concatenate(starts) if starts else np.empty(0, np.int64)
    if not len(offsets):
        raise StructureError("it has no samples. Write one JSON object per line.", shard=file.path)
    offsets[0] = 0
    return np.append(offsets, file.size).astype(np.uint64)


def load_jsonl_index(index: str, path: str) -> Offsets:
    """Return a read-only view of an index, uint64 [samples + 1]; StructureError if it cannot be."""
    try:
        size, file_size = Path(index).stat().st_size, Path(path).stat().st_size
        if size < 16 or size % 8:
            raise StructureError(f"its index {index} has {size} bytes. {_AGAIN}", shard=path)
        with Path(index).open("rb") as file:
            offsets = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), "<u8")
    except (OSError, ValueError) as error:
        problem = f"its index {index} cannot be read: {error}. {_AGAIN}"
        raise StructureError(problem, shard=path) from error
    if int(offsets[0]) != 0 or int(offsets[-1]) != file_size:
        problem = f"its index is of a file of {offsets[-1]} bytes, but it has {file_size}. {_AGAIN}"
        raise StructureError(problem, shard=path)
    return offsets


def _pieces(file: LocalFile) -> Iterator[tuple[bytes, int, int]]:
    """Yield whole lines, some MiB at a time, with their offset and the number of the first."""
    at, line = 0, 1
    while at < file.size:
        size = min(_CHUNK, file.size - at)
        data = file.read(at, size)
        while at + size < file.size and b"\n" not in data:  # one long line
            size = min(2 * size, file.size - at)
            data = file.read(at, size)
        if at + size < file.size:
            data = data[: data.rfind(b"\n") + 1]
        yield data, at, line
        at, line = at + len(data), line + data.count(b"\n")


def _samples(data: bytes, at: int, line: int, file: LocalFile) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the offsets of the lines that are samples; StructureError for other ones."""
    values = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(values == _NEWLINE)
    if not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    starts = np.concatenate(([0], ends[:-1] + 1))
    lasts = np.maximum(ends - 1, 0)
    lasts -= (values[lasts] == _RETURN) & (lasts > 0)
    good = (values[starts] == _OPEN) & (values[lasts] == _CLOSE) & (ends > starts)
    for odd in np.flatnonzero(~good).tolist():
        text = data[starts[odd] : ends[odd]].strip()
        if text and not (text.startswith(b"{") and text.endswith(b"}")):
            shown = text[:40].decode("utf-8", "backslashreplace")
            raise StructureError(
                f"line {line + odd} is no JSON object: it begins {shown!r}. Write one per line.",
                shard=file.path,
                offset=at + int(starts[odd]),
            )
        good[odd] = bool(text)
    yield starts[good] + at
