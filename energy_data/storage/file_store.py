"""Files by key, beside the samples: what cookers get as `aux` and `primary`.

    data, source = store["0001/photo.jpg"]  # its bytes, and where they were read
    data = store.get("0001/photo.jpg", sample)  # the bytes; the sample notes where they are from

A store is small and picklable: it holds paths and options, and opens on first use. The names, and
what they return, are Energon's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from energy_data.core.sample import SampleSource, add_source
from energy_data.errors import SpecError

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
            f"{self.get_path()}: a {type(self).__name__} knows nothing about media, asked for "
            f"{key!r}. Keep them in a folder or in tars, and prepare these for it."
        )


class FileStoreDecoder(Protocol[T_co]):
    """Makes something of the bytes of a file."""

    def decode(self, fname: str, data: bytes) -> T_co:
        """Return the bytes decoded; the extension of `fname` says how."""
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
