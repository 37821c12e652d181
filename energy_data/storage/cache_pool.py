"""Cache pools: files read ahead, on a disk nearby, for samples that wait in a buffer.

    lazy = cache.get_lazy(store, "0001.jpg")  # nothing is read yet
    image = lazy.get(sample)

A task that packs asks for the large files of a sample when it is read, and gets them when the
sample is packed. The names are Energon's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from energy_data.core.sample import SampleSource, add_source
from energy_data.storage.file_store import FileStore

T = TypeVar("T")


@dataclass(kw_only=True, eq=False)
class Lazy(ABC, Generic[T]):
    """A file that is read when it is asked for."""

    ds: FileStore[T] | None
    fname: str
    pool: CachePool | None

    @abstractmethod
    def get(self, sample: Any = None) -> T:
        """Return the file; `sample`, if given, notes in `__sources__` where it was read."""

    def __hash__(self) -> int:
        return hash((id(self.ds), self.fname))

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same file of the same store."""
        return isinstance(other, Lazy) and self.ds is other.ds and self.fname == other.fname


@dataclass(kw_only=True, eq=False)
class DirectLazy(Lazy[T]):
    """A file that is read at the first `get`, and kept."""

    _data: tuple[T, SampleSource] | None = field(default=None, repr=False)

    def get(self, sample: Any = None) -> T:
        """Return the file; `sample`, if given, notes in `__sources__` where it was read."""
        if self._data is None:
            assert self.ds is not None
            self._data = self.ds[self.fname]
        data, source = self._data
        add_source(sample, source)
        return data


class MockLazy(Lazy[T]):
    """What a function says, in the place of a file."""

    def __init__(self, fname: str, get_fn: Callable[[str], T]) -> None:
        """Call `get_fn(fname)` at each `get`."""
        super().__init__(ds=None, fname=fname, pool=None)
        self.get_fn = get_fn

    def get(self, sample: Any = None) -> T:
        """Return what the function says."""
        return self.get_fn(self.fname)

    def __hash__(self) -> int:
        return hash((self.fname, self.get_fn))

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same function of the same name."""
        return isinstance(other, MockLazy) and (self.fname, self.get_fn) == (
            other.fname,
            other.get_fn,
        )


class CachePool(ABC):
    """Where files come from that are asked for ahead."""

    @abstractmethod
    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """Return a file now; `sample`, if given, notes where it was read."""

    @abstractmethod
    def get_lazy(self, ds: FileStore[T], fname: str) -> Lazy[T]:
        """Return a file to be asked for later."""

    @abstractmethod
    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Put a value away and return what gives it back; `name` is for people."""

    @abstractmethod
    def close(self) -> None:
        """Remove what is cached; idempotent."""


class NoCachePool(CachePool):
    """A pool that keeps nothing: files are read when they are asked for."""

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """Return a file now; `sample`, if given, notes where it was read."""
        return ds.get(fname, sample)

    def get_lazy(self, ds: FileStore[T], fname: str) -> DirectLazy[T]:
        """Return a file to be asked for later; it is read then."""
        return DirectLazy(ds=ds, fname=fname, pool=self)

    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Return what gives the value back; it stays in memory."""
        return MockLazy(name, partial(_value, data))

    def close(self) -> None:
        """Do nothing: there is nothing to remove."""


def _value(data: T, _: str) -> T:
    return data
