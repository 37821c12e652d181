"""Files by key, in addition to samples: cookers get them as `aux` and `primary`.

    data, source = store["0001/photo.jpg"]  # its bytes, and where they were read
    data = store.get("0001/photo.jpg", sample)  # the bytes; the sample notes where they are from

A store is small and picklable: it holds paths and options, and opens on first use. The names, and
what they return, are Energon's.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from energy_data.core.lazy import cached_property
from energy_data.core.sample import SampleSource, add_source
from energy_data.data.decode.av import AVMetadata
from energy_data.data.decode.media import ImageMetadata, fact_of
from energy_data.data.files.local import LocalFile
from energy_data.data.nv_meta import FOLDER, SQLITE
from energy_data.data.tar.sqlite import SqliteIndex
from energy_data.errors import SpecError, StructureError
from energy_data.remote.client import held
from energy_data.remote.mirror_paths import NO_OPTIONS, is_mirrored, is_url
from energy_data.remote.mirrors import mirror_of_object

_RANGE = re.compile(r"(.+)#bytes=([0-9]+):([0-9]+)", re.DOTALL)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class FileStore(ABC, Generic[T_co]):
    """Files of one dataset or folder, by key."""

    @abstractmethod
    def __getitem__(self, key: str) -> tuple[T_co, SampleSource]:
        """Return the file and where it was read.

        Raises KeyError if a dataset has no such file, FileNotFoundError if a folder has none,
        ValueError for a key that leads out of the store.
        """

    @abstractmethod
    def get_path(self) -> str:
        """Return the path of the dataset or folder."""

    def get(self, key: str, sample: Any = None) -> T_co:
        """Return the file; `sample`, if given, notes in `__sources__` where it was read."""
        data, source = self[key]
        add_source(sample, source)
        return data

    def get_media_metadata(self, key: str) -> Any:
        """Return what is known about an image, audio or video file without reading it.

        `energy_data.energon.media.ImageMetadata` or `AVMetadata`. SpecError if nothing was
        collected, which only folders and datasets of tars can have.
        """
        raise SpecError(
            f"{self.get_path()}: a {type(self).__name__} has no facts about media, got a request "
            f"for {key!r}. Keep them in a folder or in tars, and prepare these for it."
        )


class DatasetFileStore(FileStore[bytes]):
    """Files of the dataset at a path."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[type[DatasetFileStore], tuple[str]]:
        return type(self), (self.path,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path})"

    def get_path(self) -> str:
        """Return the path of the dataset."""
        return self.path


class FileStoreDecoder(Protocol[T_co]):
    """Makes something of the bytes of a file."""

    def decode(self, fname: str, data: bytes) -> T_co:
        """Return the bytes decoded; the extension of `fname` decides how."""
        ...


class DecodeFileStore(FileStore[T]):
    """A store that decodes what it gives."""

    def __init__(self, inner: FileStore[bytes], *, decoder: FileStoreDecoder[T]) -> None:
        self.inner, self.decoder = inner, decoder

    def __getitem__(self, key: str) -> tuple[T, SampleSource]:
        """Return a file, decoded."""
        data, source = self.inner[key]
        return self.decoder.decode(key, data), source

    def get_path(self) -> str:
        """Return the path of the store inside."""
        return self.inner.get_path()

    def get_media_metadata(self, key: str) -> Any:
        """Return what the store inside knows about a file."""
        return self.inner.get_media_metadata(key)

    def __repr__(self) -> str:
        return f"DecodeFileStore(inner={self.inner}, decoder={self.decoder})"


class PrimaryFileStore(FileStore[T]):
    """The dataset of a sample itself; keys that begin with a dot are of that sample.

    With the current key "0001", `store[".jpg"]` is `store["0001.jpg"]`.
    """

    def __init__(self, inner: FileStore[T], current_key: str) -> None:
        self.inner, self.current_key = inner, current_key

    def __getitem__(self, key: str) -> tuple[T, SampleSource]:
        """Return a file of the dataset, or of the current sample."""
        return self.inner[self._full(key)]

    def get_path(self) -> str:
        """Return the path of the store inside."""
        return self.inner.get_path()

    def get_media_metadata(self, key: str) -> Any:
        """Return what the dataset knows about a file of it, or of the current sample."""
        return self.inner.get_media_metadata(self._full(key))

    def _full(self, key: str) -> str:
        return self.current_key + key if key.startswith(".") else key


class ByteRangeStore(FileStore[bytes]):
    """Ranges of the files below a folder, by keys such as `videos/a.bin#bytes=1024:4096`.

    The two numbers are where the range begins, and its size in bytes.

    root: the folder, or its URL in an object store. storage: options of that store.
    """

    def __init__(self, root: str | Path, storage: Mapping[str, Any] = NO_OPTIONS) -> None:
        self.root, self._folder = str(root), _FolderFiles(str(root), dict(storage))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self._folder.storage)

    def __getitem__(self, key: str) -> tuple[bytes, SampleSource]:
        """Return the bytes of a range. ValueError for another key, or one outside of the folder."""
        found = _RANGE.fullmatch(key)
        if found is None:
            problem = f"the key {key!r} is not `path#bytes=offset:size`. Write it so."
            raise ValueError(f"{self.root}: {problem}")
        path, offset, size = found[1], int(found[2]), int(found[3])
        return self.read_range(path, offset, size), SampleSource(self.root, self.root, key)

    def read_range(
        self, path: str, byte_offset: int, byte_size: int, *, sample: Any = None
    ) -> bytes:
        """Return a range of a file; `sample`, if given, notes in `__sources__` where it is from."""
        data = self._folder.read(path, byte_offset, byte_size)
        key = f"{path}#bytes={byte_offset}:{byte_size}"
        add_source(sample, SampleSource(self.root, self.root, key))
        return data

    def get_path(self) -> str:
        """Return the folder."""
        return self.root

    def __repr__(self) -> str:
        return f"ByteRangeStore({self.root})"


class _FolderFiles:
    """A folder on a disk or in an object store.

    A store is asked for a file when it is read first, so nothing is listed.
    """

    def __init__(self, root: str | None, storage: Mapping[str, Any]) -> None:
        self.root, self.storage = root, storage
        self._mirrored = lru_cache(4096)(partial(mirror_of_object, options=storage))

    def path(self, key: str) -> str:
        """Return the local path of a file.

        ValueError if it leads out of the folder; FileNotFoundError if a store has no such file.
        """
        if self.root is None:
            return key
        if key.startswith("/") or ".." in key.split("/"):
            problem = f"the key {key!r} leads out of the folder. Give a path inside it."
            raise ValueError(f"{self.root}: {problem}")
        return self._mirrored(f"{self.root}/{key}") if is_url(self.root) else f"{self.root}/{key}"

    def read(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        """Return some bytes of a file, or all."""
        path = self.path(key)
        if not is_mirrored(path):
            file = LocalFile(path)
            return file.read(offset, file.size if size is None else size)
        found = Path(path).stat().st_size
        end = found if size is None else offset + size
        if end > found:
            problem = f"bytes {offset} to {end} were requested, but the object has {found}."
            raise StructureError(problem, shard=path, offset=offset)
        # Whatever its name: files that are opened as a whole stay in the cache.
        with (
            held([(path, offset, end)] * (end > offset), always=True),
            Path(path).open("rb") as one,
        ):
            one.seek(offset)
            return one.read(end - offset)


class SystemFileStore(FileStore[bytes]):
    """The files below a folder, by path relative to it.

    base_dir: the folder, or its URL in an object store; None: keys are absolute paths. storage:
    options of the object store.
    """

    def __init__(
        self,
        base_dir: str | Path | None = None,
        storage: Mapping[str, Any] = NO_OPTIONS,
    ) -> None:
        self.base_dir = None if base_dir is None else str(base_dir)
        self._folder = _FolderFiles(self.base_dir, dict(storage))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.base_dir, self._folder.storage)

    def __getitem__(self, key: str) -> tuple[bytes, SampleSource]:
        """Return the bytes of a file. Keys that are absolute or go up by `..` are refused."""
        folder = str(self.base_dir)
        return self._folder.read(key), SampleSource(folder, folder, key)

    def get_path(self) -> str:
        """Return the folder."""
        return str(self.base_dir)

    def get_media_metadata(self, key: str) -> AVMetadata | ImageMetadata:
        """Return what is known about an image, audio or video file.

        Raises KeyError if nothing is, SpecError if nothing was collected for the folder.
        """
        return fact_of(self._facts, self.get_path(), key, "prepare-media")

    @cached_property
    def _facts(self) -> SqliteIndex | None:
        if self.base_dir is None:
            raise SpecError(
                "SystemFileStore: without a folder nothing is known about media. Give `base_dir`."
            )
        try:
            index = Path(self._folder.path(f"{FOLDER}/{SQLITE}"))
        except FileNotFoundError:  # of a store
            return None
        return SqliteIndex(index) if index.is_file() else None

    def __repr__(self) -> str:
        return f"SystemFileStore(base_dir={self.base_dir})"
