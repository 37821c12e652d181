"""Local files: exact ranges of their bytes, through a bounded number of descriptors per process.

    file = open_file("/data/shard-000.tar")
    header = file.read(0, 512)

A reader holds a `LocalFile`; `open_file` only caches it. An evicted file is closed when its last
reader releases it, so no read can use a closed or reused descriptor. Forked processes share
descriptors: reads have no position.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from energy_data.errors import StructureError


class LocalFile:
    """One open regular file, read by exact ranges; closes itself with its last reader.

    fd: its descriptor, open as long as this object lives.
    """

    __slots__ = ("fd", "mtime_ns", "path", "size", "version")

    def __init__(self, path: str) -> None:
        self.fd = -1
        # Without O_NONBLOCK, opening a pipe with the name of a shard would wait forever.
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        facts = os.fstat(self.fd)
        if not stat.S_ISREG(facts.st_mode):
            raise StructureError("is not a regular file. Give a file.", shard=path)
        self.path, self.size, self.mtime_ns = path, facts.st_size, facts.st_mtime_ns
        self.version = _version(facts)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            close(self.fd)  # at the end of the process the module may be gone already

    @property
    def is_current(self) -> bool:
        """Whether its path still leads to it, and it was not written to since it was opened."""
        return version_of(self.path) == self.version

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`, in one buffer of their own."""
        if offset + size > self.size:  # before memory is taken: sizes in headers lie
            self._check(offset, size)
        try:
            data = os.pread(self.fd, size, offset)
        except OSError as error:
            raise self._unreadable(error, offset) from error
        if len(data) == size:
            return data
        buffer = bytearray(size)  # less came than was there
        self.read_into(memoryview(buffer), offset)
        return bytes(buffer)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` with the bytes from `offset` on."""
        done, size = 0, len(buffer)
        while done < size:
            try:
                count = os.preadv(self.fd, [buffer[done:]], offset + done)
            except OSError as error:
                raise self._unreadable(error, offset + done) from error
            if count == 0:
                raise self._short(offset, size)
            done += count

    def _check(self, offset: int, size: int) -> None:
        self.size = os.fstat(self.fd).st_size  # it may have grown since it was opened
        if offset + size > self.size:
            raise self._short(offset, size)

    def _short(self, offset: int, size: int) -> StructureError:
        found = os.fstat(self.fd).st_size
        return StructureError(
            f"bytes {offset} to {offset + size} were requested, but the file has {found}. "
            "It was cut, or its index is of another file: run `energy-data prepare --force`.",
            shard=self.path,
            offset=offset,
        )

    def _unreadable(self, error: OSError, offset: int) -> StructureError:
        return StructureError(
            f"cannot be read: {error.strerror}. Check the disk or the mount.",
            shard=self.path,
            offset=offset,
        )


class Window:
    """A file read mostly forwards in small steps: `size` bytes are fetched at a time and kept."""

    def __init__(self, file: LocalFile, size: int) -> None:
        self._file, self._size = file, size
        self._data, self._begin = b"", 0

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`."""
        at = offset - self._begin
        if at < 0 or at + size > len(self._data):
            if size > self._size:
                return self._file.read(offset, size)
            ahead = max(size, min(self._size, self._file.size - offset))
            self._data, self._begin, at = self._file.read(offset, ahead), offset, 0
        return self._data[at : at + size]


@lru_cache(maxsize=256)
def open_file(path: str) -> LocalFile:
    """Return a file as `open_uncached`; the files used last stay open."""
    return open_uncached(path)


def open_current(path: str) -> LocalFile:
    """Return a file as `open_file`; open it again if it was replaced meanwhile."""
    if not open_file(path).is_current:
        open_file.cache_clear()
    return open_file(path)


def open_uncached(path: str) -> LocalFile:
    """Open a file. StructureError if that is not possible."""
    try:
        try:
            return LocalFile(path)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            open_file.cache_clear()
            return LocalFile(path)
    except OSError as error:
        raise StructureError(
            f"cannot be opened: {error.strerror}. Restore it, or prepare the dataset again.",
            shard=path,
        ) from error


Version = tuple[int, ...]
"""Changes when a file is replaced or written to."""


def version_of(path: str) -> Version | None:
    """Return the version of a file; None if there is none."""
    try:
        return _version(os.stat(path))  # noqa: PTH116 - three times as fast as Path.stat
    except OSError:
        return None


def _version(facts: os.stat_result) -> Version:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


def write_atomically(path: str, data: bytes, mode: int) -> None:
    """Write a file atomically, also if other processes write it at the same time.

    mode: permissions to read and write; those to execute are left out. Makes the folder.
    """
    with atomic_file(path, mode) as file:
        file.write(data)


@contextmanager
def atomic_file(path: str, mode: int) -> Iterator[BinaryIO]:
    """Yield a file to write to; it gets its name when the block ends without an error.

    As `write_atomically`, for what is written piece by piece.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        Path(name).chmod(mode & 0o666 | 0o600)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
