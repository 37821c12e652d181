"""Scans a tar: its keys, and where its samples begin.

Offsets are those that Energon stores: of the first header of each sample's first part, extended
headers included, then of the end marker. 4 us per file if files are small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from energy_data.data.files.local import LocalFile, Window
from energy_data.data.tar.header import BLOCK, ZEROS, Fault, TarMember, walk
from energy_data.data.tar.names import split_name
from energy_data.errors import StructureError

MOST_PARTS = 50  # different extensions that are remembered

_CHUNK = 1 << 20  # bytes read at once where files are small
_HEADERS = 1024  # bytes read at once where files are large: a small file may follow its header
_LARGE = 16384  # mean bytes of large files
_PROBED = 64  # files that are read as large ones before their mean size is known
_SECOND = "Rename one, or write the parts of a sample one after another."


class ScannedPart(NamedTuple):
    """One part of one sample."""

    sample: int
    extension: str
    offset: int  # of the payload
    size: int


@dataclass
class Scan:
    """The contents of a shard."""

    offsets: npt.NDArray[np.uint64]  # [samples + 1], as in the index
    keys: list[str]
    extensions: list[str]  # the first different ones, at most MOST_PARTS
    parts: list[ScannedPart] = field(default_factory=list)  # empty unless requested


def scan(file: LocalFile, *, with_parts: bool = False) -> Scan:
    """Return the samples of a tar.

    Raises StructureError if the tar is cut or damaged, or if two samples have one key.
    """
    try:
        return _group(file, with_parts)
    except Fault as fault:
        raise StructureError(
            fault.problem, shard=file.path, key=fault.key, offset=fault.offset
        ) from fault


def _group(file: LocalFile, with_parts: bool) -> Scan:
    offsets: list[int] = []
    keys: dict[str, None] = {}
    extensions: dict[str, None] = {}
    parts: list[ScannedPart] = []
    last, end = None, 0
    for member in _members(file):
        end = member.end
        named = split_name(member.name) if member.regular else None
        if named is None:
            continue
        key, extension = named
        if key != last:
            if key in keys:
                raise Fault(f"a second sample has this key. {_SECOND}", member.offset, key)
            keys[key] = None
            offsets.append(member.offset)
            last = key
        if extension not in extensions and len(extensions) < MOST_PARTS:
            extensions[extension] = None
        if with_parts:
            parts.append(ScannedPart(len(offsets) - 1, extension, member.data, member.size))
    return Scan(np.array([*offsets, end], np.uint64), list(keys), list(extensions), parts)


def _members(file: LocalFile) -> Iterator[TarMember]:
    """Yield all members up to the end marker. Raises Fault for a tar that is cut or damaged."""
    read_small, read_large = Window(file, _CHUNK).read, Window(file, _HEADERS).read
    at, count, size = 0, 0, file.size
    while True:
        if at >= size:
            problem = f"it ends at byte {size} without the zeros that end a tar, so it was cut."
            raise Fault(f"{problem} Restore it.", at)
        read = read_large if count < _PROBED or at >= count * _LARGE else read_small
        if size - at >= BLOCK and read(at, BLOCK) == ZEROS:
            break
        member = next(walk(read, at, size))
        yield member
        at, count = member.end, count + 1
    _check_end(file, at)


def _check_end(file: LocalFile, end: int) -> None:
    """Raise Fault if anything but zeros follows the end marker."""
    for at in range(end, file.size, _CHUNK):
        data = file.read(at, min(_CHUNK, file.size - at))
        if data.count(0) != len(data):
            problem = f"more data follows the end of the tar at byte {end}. Tars cannot be joined "
            problem += "by `cat`: keep them separate, or write a new one."
            raise Fault(problem, at + len(data) - len(data.lstrip(b"\0")))
