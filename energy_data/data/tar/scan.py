"""Scans a tar: its members, and where its samples begin.

Headers of small files are found by their magic and parsed many at once from large reads; those of
large files, and all that are not plain, one by one. Offsets are those that Energon stores: of the
first header of each sample's first part, extended headers included, then of the end marker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from energy_data.data.files.local import LocalFile, Window
from energy_data.data.tar.header import (
    BLOCK,
    PAX,
    ZEROS,
    Fault,
    Reader,
    are_idle,
    parse_headers,
    walk,
)
from energy_data.data.tar.names import split_name
from energy_data.errors import StructureError

MOST_PARTS = 50  # different extensions that are remembered

_CHUNK = 1 << 20  # bytes read at once where files are small
_LARGE = 16384  # bytes per file on average from which headers are read one by one
_PROBED = 64  # files that are examined to decide
_MAGIC = np.dtype({"names": ["magic"], "formats": ["<u4"], "offsets": [257], "itemsize": BLOCK})
_USTAR = int.from_bytes(b"usta", "little")
_HEADERS = 1024  # bytes read for one header: mostly there is a small file behind it
_ODD = 255
_UNKNOWN = (_ODD, "", 0, 0)
_SECOND = "Rename one, or write the parts of a sample one after another."


class ScannedPart(NamedTuple):
    """One part of one sample."""

    sample: int
    extension: str
    offset: int  # of the payload
    size: int


@dataclass
class Scan:
    """What is in a shard."""

    offsets: npt.NDArray[np.uint64]  # [samples + 1], as in the index
    keys: list[str]
    extensions: list[str]  # the first different ones, at most MOST_PARTS
    parts: list[ScannedPart] = field(default_factory=list)  # if asked for


_File = tuple[str, int, int, int]  # name, offset of its first header, of its payload, and its size


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
    walker = _Walker(file)
    last = None
    for name, offset, data, size in chain.from_iterable(walker.pieces()):
        named = split_name(name)
        if named is None:
            continue
        key, extension = named
        if key != last:
            if key in keys:
                raise Fault(f"a second sample has this key. {_SECOND}", offset, key)
            keys[key] = None
            offsets.append(offset)
            last = key
        if extension not in extensions and len(extensions) < MOST_PARTS:
            extensions[extension] = None
        if with_parts:
            parts.append(ScannedPart(len(offsets) - 1, extension, data, size))
    return Scan(np.array([*offsets, walker.at], np.uint64), list(keys), list(extensions), parts)


class _Walker:
    """Goes through a tar, from header to header."""

    def __init__(self, file: LocalFile) -> None:
        self.at = 0  # offset of the next header; of the end marker when all is done
        self._file = file
        self._ended = False

    def pieces(self) -> Iterator[list[_File]]:
        """Yield the regular files, some at a time; then check how the tar ends."""
        window = Window(self._file, _HEADERS)
        count = 0
        while not self._ended:
            if count < _PROBED or self.at >= count * _LARGE:
                piece = self._step(window.read)
            else:
                piece = self._stride()
            count += len(piece)
            yield piece
        self._check_end()

    def _step(self, read: Reader) -> list[_File]:
        """Go over one member, of any kind."""
        size = self._file.size
        if self.at >= size:
            problem = f"it ends at byte {size} without the zeros that end a tar, so it was cut."
            raise Fault(f"{problem} Restore it.", self.at)
        if size - self.at >= BLOCK and read(self.at, BLOCK) == ZEROS:
            self._ended = True
            return []
        member = next(walk(read, self.at, size))
        self.at = member.end
        return [member[:4]] if member.regular else []

    def _stride(self) -> list[_File]:
        """Go over all members whose headers are in the next bytes."""
        begin, size = self.at, self._file.size
        end = begin + min(_CHUNK, (size - begin) // BLOCK * BLOCK)
        window = Window(self._file, end - begin)
        if begin == end:
            return self._step(window.read)
        data = window.read(begin, end - begin)
        places = (np.frombuffer(data, _MAGIC)["magic"] == _USTAR).nonzero()[0]
        headers = parse_headers(np.frombuffer(data, np.uint8).reshape(-1, BLOCK)[places])
        offsets = places * BLOCK + begin
        follows = (offsets + headers.sizes + (2 * BLOCK - 1)) & -BLOCK
        kinds = np.where(headers.kinds == 0, ord("0"), headers.kinds)
        kinds[~headers.plain | (follows > size)] = _ODD
        columns = (headers.names, headers.sizes.tolist(), follows.tolist())
        known = dict(zip(offsets.tolist(), zip(kinds.tolist(), *columns, strict=True), strict=True))
        files: list[_File] = []
        while not self._ended and (self.at < end or self.at >= size):
            # Payloads may look like headers: only those that are reached are.
            at = self.at
            kind, name, length, follow = known.get(at, _UNKNOWN)
            if kind == PAX and are_idle(window.read(at + BLOCK, length)):
                at = follow
                kind, name, length, follow = known.get(at, _UNKNOWN)
            if kind == ord("0"):
                files.append((name, self.at, at + BLOCK, length))
                self.at = follow
            else:
                files += self._step(window.read)
        return files

    def _check_end(self) -> None:
        """Raise Fault if anything but zeros is behind the end marker."""
        at, size = self.at, self._file.size
        while at < size:
            data = self._file.read(at, min(_CHUNK, size - at))
            if data.count(0) != len(data):
                problem = f"there is more behind the end of the tar at byte {self.at}. Tars cannot "
                problem += "be joined by `cat`: keep them separate, or write a new one."
                raise Fault(problem, at + len(data) - len(data.lstrip(b"\0")))
            at += len(data)
