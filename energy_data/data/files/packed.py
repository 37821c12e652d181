"""Compressed files, read as what they unpack to.

The contents are unpacked as a whole. Those used last stay in memory (`recent.py`); nothing is
written.
"""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from collections.abc import Callable
from typing import Protocol

from energy_data.data.files.local import LocalFile
from energy_data.data.files.recent import RECENT
from energy_data.errors import MissingExtraError, StructureError

_PIECE = 1 << 20  # bytes unpacked at once: memory follows the data, not what their header says


class _Stream(Protocol):
    """What unpacks."""

    def read(self, size: int, /) -> bytes: ...


class _Zstd:
    """Unpacks zstd; its errors are ValueErrors."""

    def __init__(self, data: bytes) -> None:
        try:
            import zstandard  # noqa: PLC0415 - optional
        except ImportError as error:
            raise MissingExtraError("reading files compressed by zstd", "zstd") from error
        self._error = zstandard.ZstdError
        self._stream = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)

    def read(self, size: int, /) -> bytes:
        try:
            return self._stream.read(size)
        except self._error as error:
            raise ValueError(str(error)) from error


def _gzip(data: bytes) -> _Stream:
    return gzip.GzipFile(fileobj=io.BytesIO(data))


def _bzip2(data: bytes) -> _Stream:
    return bz2.BZ2File(io.BytesIO(data))


_OPENERS: dict[str, Callable[[bytes], _Stream]] = {"zstd": _Zstd, "gz": _gzip, "bz2": _bzip2}

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
        stream = _OPENERS[self._algorithm](self._packed.read(0, self._packed.size))
        data = bytearray()
        try:
            while piece := stream.read(min(_PIECE, most - len(data))):
                data += piece
        except (ValueError, EOFError, OSError, zlib.error) as error:
            problem = f"cannot be unpacked as {self._algorithm}: {error}"
            raise StructureError(f"{problem}. Restore it.", shard=self.path) from error
        return data
