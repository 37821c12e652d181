"""`shard.tar.idx`: where each sample of a shard begins, and where the last one ends (uint64 each).

An index is loaded when its shard is first read, and checked against the shard: an index of another
version of the tar is an error here, instead of garbage in a batch.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from rich.console import Console
from rich.progress import track

from energy_data.data.files.local import LocalFile, drop_changed, open_anew, open_file
from energy_data.data.files.offsets import (
    SUFFIX,
    Offsets,
    index_in_cache,
    last_offset,
    write_index,
)
from energy_data.data.tar.header import BLOCK, ZEROS, Fault, walk
from energy_data.data.tar.names import split_name
from energy_data.data.tar.nv_meta import PartShards, expand
from energy_data.data.tar.scan import scan
from energy_data.errors import SpecError, StructureError

_MOST_OPEN = 256  # shards per process
_SMALL = 131072  # bytes; an index up to this size is read, as a map costs a descriptor
_PROBES = 64  # samples checked if an index is older than its tar


def index_beside(tar: str) -> str:
    """Return the path of the index next to its tar."""
    return tar.removesuffix(".tar") + ".tar" + SUFFIX


class Shard(NamedTuple):
    """An open tar, and where its samples are."""

    file: LocalFile
    offsets: Offsets  # uint64 [samples + 1]
    stamp: int | None  # of the index when it was loaded
    fd: int  # of the file


class KnownShard:
    """A shard that was read once, open or not."""

    __slots__ = ("__weakref__", "count", "index", "shard", "tar", "was_used")

    def __init__(self, tar: str, index: str, count: int) -> None:
        self.tar, self.index, self.count = tar, index, count  # paths; number of samples
        self.shard: Shard | None = None
        self.was_used = False  # since it was opened, or since the clock passed it

    def open(self) -> Shard:
        """Return the open shard. StructureError if it has no index, or one of another tar."""
        self.was_used = True
        return self.shard or _SHARDS.load(self)

    def drop_changed(self) -> None:
        """Close the shard if its tar or its index was replaced."""
        drop_changed(self.tar)
        shard = self.shard
        if shard is not None and not (shard.file.is_current and _stamp(self.index) == shard.stamp):
            _SHARDS.close(self)


def known_shard(tar: str, index: str, count: int) -> KnownShard:
    """Return the one object of this process for a shard, so that it is opened once."""
    return _SHARDS.know(tar, index, count)


class _Shards:
    """The shards a process has open, at most `_MOST_OPEN`.

    The clock algorithm (Corbato, 1968) decides which to close: it goes round them and closes the
    first that was not used since the last round. Using a shard only sets a flag.
    """

    def __init__(self) -> None:
        self.known: WeakValueDictionary[tuple[str, str, int], KnownShard] = WeakValueDictionary()
        self._open: deque[KnownShard] = deque()
        self.after_fork()

    def after_fork(self) -> None:
        self.lock = threading.RLock()
        while self._open:
            self._close_first()

    def know(self, tar: str, index: str, count: int) -> KnownShard:
        with self.lock:
            return self.known.setdefault((tar, index, count), KnownShard(tar, index, count))

    def close(self, known: KnownShard) -> None:
        with self.lock:
            known.shard = None
            if known in self._open:
                self._open.remove(known)

    def load(self, known: KnownShard) -> Shard:
        file, stamp = open_file(known.tar), _stamp(known.index)
        shard = Shard(file, _load(known.index, file, known.count), stamp, file.fd)
        with self.lock:
            if known not in self._open:  # another thread may have opened it meanwhile
                self._open.append(known)
            known.shard, known.was_used = shard, False  # only a second use keeps it open
            while len(self._open) > _MOST_OPEN:
                self._close_one()
        return shard

    def _close_one(self) -> None:
        for _ in range(len(self._open)):
            if not self._open[0].was_used:
                break
            self._open[0].was_used = False
            self._open.rotate(-1)
        self._close_first()

    def _close_first(self) -> None:
        self._open[0].shard = None
        self._open.popleft()


_SHARDS = _Shards()
os.register_at_fork(after_in_child=_SHARDS.after_fork)


def _stamp(index: str) -> int | None:
    try:
        return os.stat(index).st_mtime_ns  # noqa: PTH116 - three times as fast as Path.stat
    except OSError:
        return None


def _load(index: str, file: LocalFile, count: int) -> Offsets:
    try:
        fd = os.open(index, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise _fault(file, f"its index {index} cannot be opened: {error.strerror}") from error
    try:
        facts = os.fstat(fd)
        if facts.st_size != (count + 1) * 8:
            raise _fault(
                file,
                f"its index has {facts.st_size} bytes, but {count} samples need {(count + 1) * 8}",
            )
        data: bytes | mmap.mmap
        if facts.st_size <= _SMALL:
            data = os.pread(fd, facts.st_size, 0)
        else:
            data = mmap.mmap(fd, facts.st_size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise _fault(file, f"its index {index} cannot be read: {error}") from error
    finally:
        os.close(fd)
    offsets = np.frombuffer(data, "<u8")
    _check_end(offsets, file)
    if facts.st_mtime_ns < file.mtime_ns:
        _probe(offsets, file)
    return offsets


def _check_end(offsets: Offsets, file: LocalFile) -> None:
    """Raise StructureError unless the tar ends where its last sample ends in the index."""
    end = int(offsets[-1])
    if end > file.size or end % BLOCK:
        raise _fault(file, f"its index ends at byte {end}, but the tar has {file.size} bytes")
    left = min(BLOCK, file.size - end)
    if left and file.read(end, left) != ZEROS[:left]:
        raise _fault(file, "more data follows the last sample of its index", end)


def _probe(offsets: Offsets, file: LocalFile) -> None:
    """Raise StructureError unless some samples are where an index older than its tar has them.

    Copying a dataset can leave tars that are newer than their indices. A tar was rewritten only if
    its samples are not at their offsets.
    """
    rows = np.unique(np.linspace(0, len(offsets) - 2, _PROBES).astype(np.int64))
    for row in rows.tolist() if len(offsets) > 1 else []:
        begin, end = int(offsets[row]), int(offsets[row + 1])
        try:
            members = list(walk(file.read, begin, min(end, file.size)))
        except Fault as fault:
            problem = f"its index is older than the tar and does not fit: {fault.problem}"
            raise _fault(file, problem, fault.offset) from fault
        files = [member for member in members if member.regular]
        keys = {named[0] for member in files if (named := split_name(member.name))}
        if len(keys) != 1:
            raise _fault(file, "its index is older than the tar and does not fit", begin)


def _fault(file: LocalFile, problem: str, offset: int | None = None) -> StructureError:
    return StructureError(
        f"{problem}. Run `energy-data prepare --force`.", shard=file.path, offset=offset
    )


_PACKED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


def find_plain(path: str) -> PartShards:
    """Return the tars that `path` stands for as one part, indexed.

    Raises SpecError if there are none or no samples in them, StructureError for a damaged tar.
    """
    if Path(path).is_dir():
        root, shards = path, find_tars(Path(path))
    else:
        tars = _named(path)
        root = os.path.commonpath([os.path.dirname(tar) for tar in tars]) or "."  # noqa: PTH120
        shards = [os.path.relpath(tar, root) for tar in tars]
    counts = [_count(tar) for tar in _watched([f"{root}/{shard}" for shard in shards])]
    if not sum(counts):
        raise SpecError(f"{path}: its {len(shards)} tars have no samples in them. Name others.")
    return PartShards(root, shards, counts)


def find_tars(folder: Path, *, packed: bool = False) -> list[str]:
    """Return the tars in a folder and the folders in it, relative to it, in Energon's order.

    Raises SpecError if there are none, or compressed ones unless `packed`.
    """
    found = [path for path in folder.rglob("*") if path.name.endswith((".tar", *_PACKED))]
    tars = [str(path.relative_to(folder)) for path in sorted(found) if path.is_file()]
    if not tars:
        raise SpecError(f"{folder}: there are no .tar files in it. Name a folder that has some.")
    return tars if packed else refuse_packed(tars, folder)


def refuse_packed(tars: list[str], where: Path | str) -> list[str]:
    """Return `tars`; raise SpecError if some are compressed, as those cannot be read at random."""
    packed = [tar for tar in tars if tar.endswith(_PACKED)]
    if packed:
        raise SpecError(
            f"{where}: {packed[0]} and {len(packed) - 1} more are compressed, and samples in them "
            "cannot be reached at random. Decompress them (`gunzip`), or leave them out."
        )
    return tars


def find_index(tar: str) -> str | None:
    """Return the path of an index that fits a tar; None if there is none."""
    return next((index for index in _places(tar) if index_fits(index, tar)), None)


def index_fits(index: str, tar: str) -> bool:
    """Return whether there is an index as new as its tar that can belong to it."""
    end = last_offset(index, tar)
    return 0 <= end <= Path(tar).stat().st_size and end % BLOCK == 0


def _named(path: str) -> list[str]:
    shards = list(islice(expand([path], Path()), 1_000_000)) if "{" in path else [path]
    missing = [shard for shard in shards if not Path(shard).is_file()]
    if missing or not shards:
        raise SpecError(
            f"{path}: {len(missing)} of its {len(shards)} files are missing, {missing[:1]} first. "
            "Name a tar, a folder of tars, or a pattern such as shard-{000..099}.tar."
        )
    return refuse_packed(shards, path)


def _watched(tars: list[str]) -> Iterator[str]:
    """Yield the tars; on a terminal, with a progress bar if some have to be indexed."""
    console = Console(stderr=True)
    if not console.is_terminal or all(find_index(tar) for tar in tars):
        yield from tars
        return
    yield from track(tars, "Indexing tars", console=console, transient=True)


def _count(tar: str) -> int:
    """Return the number of samples in a tar; index it if that has not been done."""
    index = find_index(tar)
    if index is not None:
        return Path(index).stat().st_size // 8 - 1
    offsets = scan(open_anew(tar)).offsets
    write_index(tar, offsets, _places(tar))
    return len(offsets) - 1


def _places(tar: str) -> tuple[str, str]:
    return index_beside(tar), index_in_cache(tar)
