"""Cache pools: files are read ahead onto a local disk while their samples wait in a buffer.

    lazy = cache.get_lazy(store, "0001.jpg")  # starts to read
    image = lazy.get(sample)  # waits for the file

A task encoder that packs requests the large files of a sample when the sample is read, and gets
them when it is packed. The names are Energon's.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any, Generic, Literal, TypeVar
from weakref import finalize

from attrs import define

from energy_data.core.sample import SampleSource, add_source
from energy_data.data.files.stores import DecodeFileStore, FileStore
from energy_data.errors import SpecError

T = TypeVar("T")


@dataclass(kw_only=True, eq=False)
class Lazy(ABC, Generic[T]):
    """A file that is read on request."""

    ds: FileStore[T] | None
    fname: str
    pool: CachePool | None

    @abstractmethod
    def get(self, sample: Any = None) -> T:
        """Return the file; its source is added to `__sources__` of `sample` if given."""

    def __hash__(self) -> int:
        return hash((id(self.ds), self.fname))

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same file of the same store."""
        return isinstance(other, Lazy) and self.ds is other.ds and self.fname == other.fname


@dataclass(kw_only=True, eq=False)
class DirectLazy(Lazy[T]):
    """A file that is read by the first `get`, and then kept in memory."""

    _data: tuple[T, SampleSource | None] | None = field(default=None, repr=False)

    def get(self, sample: Any = None) -> T:
        """Return the file; its source is added to `__sources__` of `sample` if given."""
        if self._data is None:
            self._data = self._load()
        data, source = self._data
        if source is not None:
            add_source(sample, source)
        return data

    def _load(self) -> tuple[T, SampleSource | None]:
        assert self.ds is not None
        return self.ds[self.fname]


class MockLazy(Lazy[T]):
    """The result of a function instead of a file."""

    def __init__(self, fname: str, get_fn: Callable[[str], T]) -> None:
        """Call `get_fn(fname)` at each `get`."""
        super().__init__(ds=None, fname=fname, pool=None)
        self.get_fn = get_fn

    def get(self, sample: Any = None) -> T:
        """Return the result of the function."""
        return self.get_fn(self.fname)

    def __hash__(self) -> int:
        return hash((self.fname, self.get_fn))

    def __eq__(self, other: object) -> bool:
        """Return whether function and name are the same."""
        return isinstance(other, MockLazy) and (self.fname, self.get_fn) == (
            other.fname,
            other.get_fn,
        )


class CachePool(ABC):
    """Provides files that are requested ahead of use."""

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """Return a file now; its source is added to `sample` if given."""
        return self.get_lazy(ds, fname).get(sample)

    @abstractmethod
    def get_lazy(self, ds: FileStore[T], fname: str) -> Lazy[T]:
        """Return a handle to get the file later."""

    @abstractmethod
    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Store a value and return a `Lazy` for it; `name` appears in its repr."""

    def close(self) -> None:  # noqa: B027 - optional to override
        """Remove all cached files; idempotent."""


class NoCachePool(CachePool):
    """A pool that caches nothing: files are read on request."""

    def get_lazy(self, ds: FileStore[T], fname: str) -> DirectLazy[T]:
        """Return a handle that reads the file on its first `get`."""
        return DirectLazy(ds=ds, fname=fname, pool=self)

    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Return a handle for the value, which stays in memory."""
        return DirectLazy(ds=None, fname=name, pool=self, _data=(data, None))


Name = tuple[str, str]  # path of the store, key of the file


@define(kw_only=True, eq=False, slots=False)
class FileStoreCachePool(CachePool):
    """Caches files in a folder, which is best on a local disk.

    A file that is requested several times is read once. If the cache is full, or reading ahead has
    failed, the file is read when it is needed. Each process has a folder of its own, and removes it
    when it ends. The folder and the threads are created on first use.

    Args:
        parent_cache_dir: Parent of the folder, created if it does not exist; None: the default
            folder of temporary files.
        num_workers: Reading threads per process.
        max_cache_size_gbytes: Maximum GiB in the cache, per process.
        max_cache_count: Maximum number of files in it.
        method: "raw" caches the bytes of a file and decodes them on `get`; "pickle" caches the
            decoded value.
    """

    parent_cache_dir: str | Path | None = None
    num_workers: int = 8
    max_cache_size_gbytes: float = 1024
    max_cache_count: int = 10_000_000
    method: Literal["raw", "pickle"] = "raw"

    def __attrs_post_init__(self) -> None:
        if self.method not in ("raw", "pickle"):
            raise SpecError(
                f"FileStoreCachePool: method must be 'raw' or 'pickle', got {self.method!r}."
            )
        self._folder: _Folder | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_folder": None}

    def get_lazy(self, ds: FileStore[T], fname: str) -> FileCacheLazy[T]:
        """Start to read a file, and return a handle for it."""
        folder, raw = self._open(), self.method == "raw"
        inner = ds.inner if raw and isinstance(ds, DecodeFileStore) else ds
        entry = folder.ask((ds.get_path(), fname), inner, fname)
        decode = inner is not ds
        return FileCacheLazy(
            ds=ds, fname=fname, pool=self, folder=folder, entry=entry, decode=decode
        )

    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Store a value and return a `Lazy` for it; `name` appears in its repr."""
        folder = self._open()
        entry = folder.ask(("", f"{id(data)}-{name}"), {name: (data, None)}, name)
        if not entry.future.result():  # the cache is full: the value stays in memory
            folder.release(entry)
            return NoCachePool().to_cache(data, name)
        return FileCacheLazy(
            ds=None, fname=name, pool=self, folder=folder, entry=entry, decode=False
        )

    def close(self) -> None:
        """Remove all cached files; idempotent."""
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def _open(self) -> _Folder:
        if self._folder is None or self._folder.process != os.getpid():
            self._folder = _Folder(self)
        return self._folder


@dataclass(kw_only=True, eq=False)
class FileCacheLazy(DirectLazy[T]):
    """A file that is being read ahead."""

    folder: _Folder = field(repr=False)
    entry: _Entry = field(repr=False)
    decode: bool = field(repr=False)  # what is cached is what is inside a `DecodeFileStore`

    def __post_init__(self) -> None:
        self._release = finalize(self, self.folder.release, self.entry)

    def _load(self) -> tuple[T, SampleSource | None]:
        kept: tuple[Any, SampleSource | None] | None = self.entry.load()
        if kept is None:
            kept = super()._load()
        elif self.decode:
            assert isinstance(self.ds, DecodeFileStore)
            kept = self.ds.decoder.decode(self.fname, kept[0]), kept[1]
        self._release()
        return kept


class _Entry:
    """A file in the cache, or one that is being read into it."""

    def __init__(self, name: Name, path: Path) -> None:
        self.name, self.path = name, path
        self.num_users = 1
        self.num_bytes = 0
        self.future: Future[bool] = Future()

    def load(self) -> Any:
        """Wait for the file and return its cached value; None if it was not cached."""
        return pickle.loads(self.path.read_bytes()) if self.future.result() else None  # noqa: S301 - written by this process


class _Folder:
    """The cache of one process."""

    def __init__(self, pool: FileStoreCachePool) -> None:
        self.process = os.getpid()
        if pool.parent_cache_dir is not None:
            Path(pool.parent_cache_dir).mkdir(parents=True, exist_ok=True)
        self.path = Path(tempfile.mkdtemp(prefix="energy-data-", dir=pool.parent_cache_dir))
        self._most_bytes = int(pool.max_cache_size_gbytes * (1 << 30))
        self._most_files = pool.max_cache_count
        self._threads = ThreadPoolExecutor(pool.num_workers, "energy-data-cache")
        self._lock = threading.RLock()  # the garbage collector may call `release` inside a lock
        self._entries: dict[Name, _Entry] = {}
        self._num_bytes, self._made = 0, 0
        self._remove = finalize(self, _removed, self.path, self.process)

    def ask(self, name: Name, store: Any, fname: str) -> _Entry:
        with self._lock:
            if entry := self._entries.get(name):
                entry.num_users += 1
                return entry
            self._made += 1
            entry = self._entries[name] = _Entry(name, self.path / str(self._made))
            entry.future = self._threads.submit(self._keep, entry, store, fname)
            return entry

    def release(self, entry: _Entry) -> None:
        if self.process != os.getpid():  # in a forked child the lock may never be released
            return
        with self._lock:
            entry.num_users -= 1
            if entry.num_users:
                return
            self._entries.pop(entry.name, None)
            self._num_bytes -= entry.num_bytes
        entry.future.cancel()
        entry.future.add_done_callback(lambda _: entry.path.unlink(missing_ok=True))

    def remove(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._remove()

    def _keep(self, entry: _Entry, store: Any, fname: str) -> bool:
        """Cache a file. Return False if the cache is full, or the file cannot be read now."""
        with self._lock:
            if len(self._entries) > self._most_files or self._num_bytes >= self._most_bytes:
                return False
        try:
            kept = pickle.dumps(store[fname], protocol=5)
        except Exception:  # noqa: BLE001 - the file is read again on `get`, which raises the error
            return False
        with self._lock:
            if self._num_bytes + len(kept) > self._most_bytes:
                return False
            self._num_bytes += len(kept)
            entry.num_bytes = len(kept)
        entry.path.write_bytes(kept)
        return True


def _removed(path: Path, process: int) -> None:
    if process == os.getpid():  # a forked child must not remove it
        rmtree(path, ignore_errors=True)
