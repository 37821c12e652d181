"""Compressed files, read as what they unpack to.

The contents are unpacked as a whole. Those used last stay in memory (`recent.py`); nothing is
written.
"""

from __future__ import annotations

import bz2
import io
from collections.abc import Callable, Iterator
from functools import partial

from energy_data.data.files.local import LocalFile
from energy_data.data.files.recent import RECENT
from energy_data.data.frames.compression import GZIP, ZSTD, texts
from energy_data.errors import StructureError

_PIECE = 1 << 20  # bytes unpacked at once


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
        key = self.path, self._packed.size, self.mtime_ns, self._algorithm, self.size
        data = RECENT.get(key, self._unpack)
        if offset + size > len(data):
            problem = f"bytes {offset} to {offset + size} were requested, but it unpacks to"
            raise StructureError(
                f"{problem} {len(data)}. Restore it.", shard=self.path, offset=offset
            )
        return bytes(memoryview(data)[offset : offset + size])

    def _unpack(self) -> tuple[bytearray, int]:
        # One byte more than there should be shows that there are more.
        data = self._unpacked(self.size + 1)
        if len(data) != self.size:
            found = f"more than {self.size}" if len(data) > self.size else str(len(data))
            raise StructureError(
                f"unpacks to {found} bytes, but its index says {self.size}. Restore it, or the "
                "index.",
                shard=self.path,
            )
        return data, len(data)

    def _unpacked(self, most: int) -> bytearray:
        """Return what it unpacks to, or the first `most` bytes of that."""
        data = bytearray()
        for piece in _OPENERS[self._algorithm](self._packed):
            data += piece
            if len(data) >= most:
                break
        return data[:most]
