"""Local files: exact ranges of their bytes, through a bounded set of descriptors per process.

    with_file = open_file("/data/shard-000.tar")
    header = with_file.read(0, 512)

A reader holds a `LocalFile`; the set only caches it. A file that is evicted from the set is closed
when its last reader releases it, so no read can use a closed or reused descriptor.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from energy_data.errors import StructureError

_FEWEST_OPEN = 8  # kept when the system refuses to open more


class LocalFile:
    """One open regular file, read by exact ranges; closes itself with its last reader.

    fd: its descriptor, open as long as this object lives.
    """

    __slots__ = ("_identity", "fd", "mtime_ns", "path", "size")

    def __init__(self, path: str) -> None:
        self.fd = -1
        # Without O_NONBLOCK, opening a pipe that bears a shard's name would wait for ever.
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        facts = os.fstat(self.fd)
        if not stat.S_ISREG(facts.st_mode):
            raise StructureError("is not a regular file. Give a file.", shard=path)
        self.path, self.size, self.mtime_ns = path, facts.st_size, facts.st_mtime_ns
        self._identity = _identity(facts)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    @property
    def is_current(self) -> bool:
        """Whether its path still leads to it, and it was not written to since it was opened."""
        return _identity_of(self.path) == self._identity

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
        whole = bytearray(size)
        self.read_into(memoryview(whole), offset)
        return bytes(whole)

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

    def will_need(self, offset: int, size: int) -> None:
        """Tell the kernel that this range is read soon."""
        os.posix_fadvise(self.fd, offset, size, os.POSIX_FADV_WILLNEED)

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
            whole = max(size, min(self._size, self._file.size - offset))
            self._data, self._begin, at = self._file.read(offset, whole), offset, 0
        return self._data[at : at + size]


class OpenFiles:
    """The files a process has open, at most `limit`; the one unused for longest goes first."""

    def __init__(self, limit: int = 256) -> None:
        self.limit = limit
        self.lock = threading.Lock()
        self._files: OrderedDict[str, LocalFile] = OrderedDict()

    def get(self, path: str) -> LocalFile:
        """Return the open file; raise StructureError if there is none to open."""
        with self.lock:
            file = self._files.get(path)
            if file is not None:
                self._files.move_to_end(path)
                return file
        file = self.open(path)
        with self.lock:
            self._files[path] = file
            self._shrink(self.limit)
        return file

    def drop_changed(self, path: str) -> None:
        """Forget a file that was replaced: the next `get` opens it again."""
        file = self._files.get(path)
        if file is not None and not file.is_current:
            with self.lock:
                self._files.pop(path, None)

    def forget(self) -> None:
        """Forget all files in a forked child; those of the parent stay open."""
        self.lock = threading.Lock()
        self._files = OrderedDict()

    def open(self, path: str) -> LocalFile:
        """Return a file that is not kept among the open ones."""
        try:
            try:
                return LocalFile(path)
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                with self.lock:
                    self._shrink(_FEWEST_OPEN)
                return LocalFile(path)
        except OSError as error:
            raise StructureError(
                f"cannot be opened: {error.strerror}. Restore it, or prepare the dataset again.",
                shard=path,
            ) from error

    def _shrink(self, limit: int) -> None:
        while len(self._files) > limit:
            self._files.popitem(last=False)


_OPEN = OpenFiles()
os.register_at_fork(
    before=lambda: _OPEN.lock.acquire() and None,
    after_in_parent=lambda: _OPEN.lock.release(),
    after_in_child=_OPEN.forget,
)


def _identity(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


def _identity_of(path: str) -> tuple[int, ...] | None:
    try:
        return _identity(os.stat(path))  # noqa: PTH116 - three times as fast as Path.stat
    except OSError:
        return None


open_anew = _OPEN.open
drop_changed = _OPEN.drop_changed
open_file = _OPEN.get


def write_whole(path: str, data: bytes, mode: int) -> None:
    """Write a file atomically, also if other processes write it at the same time.

    mode: permissions to read and write; those to execute are left out. Makes the folder.
    """
    with whole_file(path, mode) as file:
        file.write(data)


@contextmanager
def whole_file(path: str, mode: int) -> Iterator[BinaryIO]:
    """Yield a file to write to; it gets its name when the block ends without an error.

    As `write_whole`, for what is written piece by piece.
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
