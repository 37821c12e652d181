"""The files below a folder, by path, and what is known about the media among them.

store = SystemFileStore("/data/images")
data, source = store["0001/photo.jpg"]
store.get_media_metadata("0001/photo.jpg").width  # after `energy-data prepare-media /data/images`
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from energy_data.core.sample import SampleSource
from energy_data.errors import SpecError
from energy_data.sources.av_decoder import AVMetadata
from energy_data.sources.media_facts import ImageMetadata, fact_of
from energy_data.sources.tar_meta import FOLDER, SQLITE
from energy_data.sources.tar_sqlite import SqliteIndex
from energy_data.storage.file_store import FileStore
from energy_data.storage.files import File


class SystemFileStore(FileStore[bytes]):
    """The files below a folder, by path relative to it.

    base_dir: the folder; None: keys are absolute paths.
    """

    def __init__(self, base_dir: str | Path | None = None) -> None:
        self.base_dir = None if base_dir is None else str(base_dir)

    def __reduce__(self) -> tuple[type[SystemFileStore], tuple[str | None]]:
        return type(self), (self.base_dir,)

    def __getitem__(self, key: str) -> tuple[bytes, SampleSource]:
        """Return the bytes of a file. Keys that are absolute or go up by `..` are refused."""
        if self.base_dir is None:
            path = Path(key)
        elif key.startswith("/") or ".." in key.split("/"):
            raise ValueError(
                f"{self.base_dir}: the key {key!r} leads out of the folder. Give a path inside it."
            )
        else:
            path = Path(self.base_dir, key)
        file = File(str(path))
        folder = str(self.base_dir)
        return file.read(0, file.size), SampleSource(folder, folder, key)

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
        index = Path(self.base_dir, FOLDER, SQLITE)
        return SqliteIndex(index) if index.is_file() else None

    def __repr__(self) -> str:
        return f"SystemFileStore(base_dir={self.base_dir})"
