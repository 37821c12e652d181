"""Compressed files, read as what they unpack to.

The contents are unpacked piece by piece, from the start. Pieces used last stay in memory
(`recent.py`); nothing is written.
"""

from __future__ import annotations

import bz2
import io
from collections.abc import Callable, Iterator
from functools import partial

from energy_data.data.files.local import LocalFile
from energy_data.data.files.recent import RECENT, Make
from energy_data.data.frames.compression import GZIP, ZSTD, texts
from energy_data.errors import StructureError

_PIECE = 1 << 20  # bytes unpacked at once
_HELD = 1 << 22  # bytes that decompressing holds, about


def _bzip2(file: LocalFile) -> Iterator[bytes]:
    """Yield what a file of bzip2 unpacks to, piece by piece."""
    stream = bz2.BZ2File(io.BytesIO(file.read(0, file.size)))
    try:
        while piece := stream.read(_PIECE):
            yield piece
    except (ValueError, EOFError, OSError) as error:
        problem = f"cannot be decompressed: {error}"
        raise StructureError(f"{problem}. Restore the file.", shard=file.path) from error


_OPENERS: dict[str, Callable[[LocalFile], Iterator[bytes]]] = {
    "zstd": partial(texts, ZSTD),
    "gz": partial(texts, GZIP),
    "bz2": _bzip2,
}

ALGORITHMS = tuple(_OPENERS)
"""Names of compressions, as MosaicML Streaming has them."""


class PackedFile(LocalFile):
    """A compressed file that reads as what it unpacks to, `size` bytes."""

    __slots__ = ("_algorithm", "_packed")
    gap = 0  # bytes that are read are those that are used

    def __init__(self, packed: LocalFile, algorithm: str, size: int) -> None:
        self.fd = -1
        self.path, self.size, self.mtime_ns = packed.path, size, packed.mtime_ns
        self._packed, self._algorithm = packed, algorithm

    @classmethod
    def head(cls, packed: LocalFile, algorithm: str, size: int) -> bytes:
        """Return the first bytes of what a file unpacks to: at most `size`."""
        return bytes(cls(packed, algorithm, size)._unpacked(size))

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`. StructureError for damage."""
        if offset + size > self.size:
            problem = f"bytes {offset} to {offset + size} were requested, but it unpacks to"
            raise StructureError(
                f"{problem} {self.size}. Restore it.", shard=self.path, offset=offset
            )
        of = self.path, self._packed.size, self.mtime_ns, self._algorithm, self.size
        count, parts = -(-self.size // _PIECE), list[memoryview]()
        for number in range(offset // _PIECE, -(-(offset + size) // _PIECE)):
            begin = number * _PIECE
            piece = memoryview(RECENT.piece(of, number, count, self._decode))
            part = piece[max(offset - begin, 0) : offset + size - begin]
            if number:  # the first piece has offsets, which are read at any time
                RECENT.use((of, number), len(part), len(piece))
            parts.append(part)
        return b"".join(parts)

    def _decode(self) -> tuple[Iterator[Make[bytes]], int]:
        held = self._packed.size if self._algorithm == "bz2" else 0
        return self._pieces(), _HELD + held

    def _pieces(self) -> Iterator[Make[bytes]]:
        """Yield what makes each piece. StructureError if they are not as many as they should be."""
        data, size = bytearray(), 0
        for unpacked in _OPENERS[self._algorithm](self._packed):
            size += len(unpacked)
            if size > self.size:
                raise self._wrong(f"more than {self.size}")
            data += unpacked
            while len(data) >= _PIECE and size < self.size:
                yield partial(_made, bytes(data[:_PIECE]))
                del data[:_PIECE]
        if size < self.size:
            raise self._wrong(str(size))
        for begin in range(0, len(data), _PIECE):
            yield partial(_made, bytes(data[begin : begin + _PIECE]))

    def _wrong(self, found: str) -> StructureError:
        return StructureError(
            f"unpacks to {found} bytes, but its index says {self.size}. Restore it, or the index.",
            shard=self.path,
        )

    def _unpacked(self, most: int) -> bytearray:
        """Return the first `most` bytes of what it unpacks to."""
        data = bytearray()
        for piece in _OPENERS[self._algorithm](self._packed):
            data += piece
            if len(data) >= most:
                break
        return data[:most]


def _made(piece: bytes) -> tuple[bytes, int]:
    return piece, len(piece)
