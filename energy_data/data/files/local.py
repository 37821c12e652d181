"""Local files: exact ranges of their bytes, through a bounded number of descriptors per process.

    file = open_file("/data/shard-000.tar")
    header = file.read(0, 512)

A file is closed when its last reader releases it, so no read can use a closed or reused descriptor.
`keep_open` keeps the files that were used last. Forked processes share descriptors: reads have no
position.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from energy_data.errors import StructureError
from energy_data.remote.cache_space import Range
from energy_data.remote.client import client_of, covered, fetch_whole, held
from energy_data.remote.mirror_paths import has_samples, is_mirrored, root_of

CHANGED = "was changed while it was in use. Restart the run."
"""What is wrong with a file of another version."""

_FETCHED = 1 << 17  # bytes of an object that are fetched together, unless an order is known
_STREAMED, _AHEAD = 1 << 22, 16  # bytes of a piece of a stream, and pieces that are fetched ahead
_LATE = 1 << 62  # a micro-batch after all that runs need
_ONE_CALL = 0x7FFFF000  # bytes that the system reads at once


class LocalFile:
    """One open regular file, read by exact ranges; closes itself with its last reader.

    fd: its descriptor, open as long as this object lives.
    """

    __slots__ = ("fd", "mtime_ns", "path", "size")
    gap = 8192  # bytes between two others that are cheaper to read than to skip

    def __init__(self, path: str) -> None:
        self.fd = -1
        if not has_samples(path):
            fetch_whole(path)
        # Without O_NONBLOCK, opening a pipe with the name of a shard would wait forever.
        flags = os.O_RDONLY | os.O_NONBLOCK
        try:
            self.fd = os.open(path, flags)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            keep_open.cache_clear()
            self.fd = os.open(path, flags)
        facts = os.fstat(self.fd)
        if not stat.S_ISREG(facts.st_mode):
            raise StructureError("is not a regular file. Give a file.", shard=path)
        self.path, self.size, self.mtime_ns = path, facts.st_size, _mtime_ns(path, facts)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            close(self.fd)  # at the end of the process the module may be gone already

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`, in one buffer of their own."""
        if offset + size > self.size:  # before memory is allocated: sizes in headers may be wrong
            self._check(offset, size)
        try:
            if size <= _ONE_CALL:
                data = os.pread(self.fd, size, offset)
                if len(data) == size:
                    return data
            # `open` reads piece by piece into one `bytes`, at a position of its own.
            with open(f"/proc/self/fd/{self.fd}", "rb") as stream:  # noqa: PTH123 - no path of a user
                stream.seek(offset)
                data = stream.read(size)
        except OSError as error:
            raise self._unreadable(error, offset) from error
        if len(data) < size:
            raise self._short(offset, size)
        return data

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

    def read_rows(self, buffer: memoryview, offsets: Sequence[int]) -> None:
        """Fill `buffer` with as many bytes from each of `offsets` on."""
        size = len(buffer) // max(len(offsets), 1)
        for begin, offset in zip(range(0, len(buffer), size or 1), offsets, strict=True):
            row = buffer[begin : begin + size]
            try:
                if os.preadv(self.fd, [row], offset) == size:
                    continue
            except OSError as error:
                raise self._unreadable(error, offset) from error
            self.read_into(row, offset)

    def _check(self, offset: int, size: int) -> None:
        self.size = os.fstat(self.fd).st_size  # it may have grown since it was opened
        if offset + size > self.size:
            raise self._short(offset, size)

    def _short(self, offset: int, size: int) -> StructureError:
        found = os.fstat(self.fd).st_size
        return StructureError(
            f"bytes {offset} to {offset + size} were requested, but the file has {found}. "
            "It was cut, or its index is of another file. Restore it, or prepare the dataset "
            "again.",
            shard=self.path,
            offset=offset,
        )

    def _unreadable(self, error: OSError, offset: int) -> StructureError:
        return StructureError(
            f"cannot be read: {error.strerror}. Check the disk or the mount.",
            shard=self.path,
            offset=offset,
        )


class MirroredFile(LocalFile):
    """A file in a cache: the bytes that are read are fetched before."""

    __slots__ = ()

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`, in one buffer of their own."""
        with self._held(offset, size):
            return super().read(offset, size)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` with the bytes from `offset` on."""
        with self._held(offset, len(buffer)):
            super().read_into(buffer, offset)

    def read_rows(self, buffer: memoryview, offsets: Sequence[int]) -> None:
        """Fill `buffer` with as many bytes from each of `offsets` on."""
        size = len(buffer) // max(len(offsets), 1)
        ends = (min(offset + size, self.size) for offset in offsets)
        ranges = [(self.path, *both) for both in zip(offsets, ends, strict=True) if size]
        with held(ranges):
            super().read_rows(buffer, offsets)

    def _held(self, offset: int, size: int) -> AbstractContextManager[None]:
        # What is read by single ranges has neighbours that are read next. Reading beyond the end is
        # an error of its own.
        block = _block(self.path, offset, offset + size, self.size)
        return held([block] if size and block[1] < block[2] else [])


def _block(path: str, begin: int, end: int, size: int) -> Range:
    """Return what is fetched to read [begin, end) of a file of some bytes."""
    return path, begin // _FETCHED * _FETCHED, min(-(-end // _FETCHED) * _FETCHED, size)


def end_ranges(paths: Iterable[str]) -> list[Range]:
    """Return the last bytes of files, as they are fetched."""
    sizes = [(path, os.stat(path).st_size) for path in paths]  # noqa: PTH116 - as in `open_file`
    return [_block(path, size - 1, size, size) for path, size in sizes if size]


class StreamedFile(MirroredFile):
    """A file in a cache that is read once, from its begin on: what comes next is fetched ahead."""

    __slots__ = ("_at", "_client", "_owner")

    def __init__(self, path: str) -> None:
        self._client, self._owner = client_of(root_of(path)), f"stream {id(self)}"
        self._at = -1  # the piece that the last read ended in
        super().__init__(path)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        self._client.gone.append(self._owner)
        super().__del__(close)

    def _held(self, offset: int, size: int) -> AbstractContextManager[None]:
        if (at := (offset + size) // _STREAMED) != self._at:
            self._at = at
            begins = range(at * _STREAMED, min((at + _AHEAD) * _STREAMED, self.size), _STREAMED)
            pieces = [(self.path, one, min(one + _STREAMED, self.size)) for one in begins]
            self._client.want(self._owner, pieces, [_LATE] * len(pieces))
        return super()._held(offset, size)


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
def keep_open(open: Callable[..., Any], *facts: Hashable) -> Any:  # noqa: A002 - it opens a file
    """Return `open(*facts)`. The results used last stay in memory, and their files stay open.

    facts: what the result depends on, with the version of each file. Otherwise a file that was
    replaced would still be read.
    """
    with covered(is_covered=False):  # who holds samples holds no headers
        return open(*facts)


def open_file(path: str, version: Version | None = None, *, is_streamed: bool = False) -> LocalFile:
    """Open a file. StructureError if that is not possible.

    version: if given, the file must have this version, except for its inode, which some file
        systems change. is_streamed: it is read once, from its begin on.
    """
    of_mirror = StreamedFile if is_streamed else MirroredFile
    try:
        file = of_mirror(path) if has_samples(path) else LocalFile(path)
    except OSError as error:
        raise StructureError(
            f"cannot be opened: {error.strerror}. Restore it, or prepare the dataset again.",
            shard=path,
        ) from error
    if version is not None and (file.size, file.mtime_ns) != version[1:]:
        raise StructureError(CHANGED, shard=path)
    return file


class Version(NamedTuple):
    """Changes when a file is replaced or written to."""

    inode: int
    size: int  # bytes
    mtime_ns: int


def version_of(path: str) -> Version | None:
    """Return the version of a file; None if there is none."""
    try:
        facts = os.stat(path)  # noqa: PTH116 - three times as fast as Path.stat
    except OSError:
        return None
    return Version(facts.st_ino, facts.st_size, _mtime_ns(path, facts))


def _mtime_ns(path: str, facts: os.stat_result) -> int:
    """Return what changes when a file is written to: for one in a cache, when it is replaced."""
    return facts.st_ino if is_mirrored(path) else facts.st_mtime_ns


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
