"""The files in a prepared dataset of tars, by key, found by its `index.sqlite`.

store = WebdatasetFileStore("/data/images")
data, source = store["photos/0001.jpg"]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from energy_data.core.lazy import cached_property
from energy_data.core.sample import SampleSource
from energy_data.data.decode.av import AVMetadata
from energy_data.data.decode.media import ImageMetadata, fact_of
from energy_data.data.files.local import LocalFile, keep_open, open_file, version_of
from energy_data.data.files.stores import DatasetFileStore
from energy_data.data.nv_meta import FOLDER, SQLITE, NvMeta
from energy_data.data.tar.header import BLOCK, Fault, split_name, walk
from energy_data.data.tar.sqlite import ADVICE, SqliteIndex, utf8
from energy_data.errors import SpecError, StructureError

_OF_KEY = (
    "FROM samples AS s JOIN sample_parts AS p "
    "ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index WHERE s.sample_key = ?"
)
_PART = (
    f"SELECT p.tar_file_id, p.content_byte_offset, p.content_byte_size {_OF_KEY} "
    "AND p.part_name = ?"
)
_PARTS = (
    f"SELECT p.part_name, p.content_byte_size, p.tar_file_id {_OF_KEY} "
    "ORDER BY p.content_byte_offset"
)
_ALL_PARTS = (
    "SELECT s.sample_key || '.' || p.part_name, p.content_byte_size, p.tar_file_id "
    "FROM sample_parts AS p JOIN samples AS s "
    "ON p.tar_file_id = s.tar_file_id AND p.sample_index = s.sample_index "
    "ORDER BY p.tar_file_id, p.sample_index, p.content_byte_offset"
)
_NUM_SAMPLES = "SELECT COUNT(*) FROM samples"


class WebdatasetFileStore(DatasetFileStore):
    """The parts of all samples of a dataset, whatever their split, by name of the file in its tar.

    A lookup costs one query of `index.sqlite` and one read. Raises SpecError, when it is made, if
    there is no such index.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        prepared = NvMeta.of(Path(path))
        if prepared is None:
            problem = "it is no prepared dataset, and files are found by its index"
            raise SpecError(f"{path}: {problem}. Run `energy-data prepare --sqlite` on it.")
        index = Path(path, FOLDER, SQLITE)
        if not index.is_file():
            raise SpecError(
                f"{path}: it has no {FOLDER}/{SQLITE}, by which files are found. Run `energy-data "
                "prepare --tar-index-only` on it."
            )
        self._prepared, self._index = prepared, SqliteIndex(index)

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(next(self._index.rows(_NUM_SAMPLES))[0])

    def __getitem__(self, key: str) -> tuple[bytes, SampleSource]:
        """Return the bytes of a file. KeyError if there is none; StructureError for damage."""
        named = split_name(key)
        rows = self._index.rows(_PART, *map(utf8, named)) if named else ()
        for shard, offset, size in rows:
            return self._read(key, shard, offset, size)
        raise KeyError(f"{self.path}: there is no file {key!r} in its tars.")

    def get_media_metadata(self, key: str) -> AVMetadata | ImageMetadata:
        """Return what is known about an image, audio or video file.

        Raises KeyError if nothing is, SpecError if nothing was collected for the dataset.
        """
        return fact_of(self._index, self.path, key, "prepare --force")

    def list_all_sample_parts(self) -> Iterator[tuple[str, int, int]]:
        """Yield each file's key, its bytes, and the number of its shard, in order."""
        yield from self._index.rows(_ALL_PARTS)

    def list_sample_parts(self, sample_key: str) -> Iterator[tuple[str, int, int]]:
        """Yield the parts of a sample: extension, bytes, and number of the shard."""
        yield from self._index.rows(_PARTS, utf8(sample_key))

    @cached_property
    def _shards(self) -> list[str]:
        return list(self._prepared.counts)

    def _read(self, key: str, shard: int, offset: int, size: int) -> tuple[bytes, SampleSource]:
        """Return a payload after checking that its own header precedes it."""
        if not 0 <= shard < len(self._shards):
            problem = f"its {SQLITE} has a shard number {shard} of {len(self._shards)}"
            raise StructureError(f"{problem}. {ADVICE}", dataset=self.path)
        name = self._shards[shard]
        path = f"{self.path}/{name}"
        file: LocalFile = keep_open(open_file, path, version_of(path))
        if offset < BLOCK or size < 0 or offset % BLOCK:
            raise self._stale(file, offset, f"no file begins there, so not {key!r}.")
        try:  # the header before it is its own, also after long names and pax records
            member = next(walk(file.read, offset - BLOCK, file.size))
        except Fault as fault:
            raise self._stale(file, fault.offset, fault.problem) from fault
        if member.size != size:
            problem = f"{key!r} has {member.size} bytes there, not {size}."
            raise self._stale(file, offset, problem)
        return file.read(offset, size), SampleSource(self.path, name, key)

    def _stale(self, file: LocalFile, offset: int, problem: str) -> StructureError:
        return StructureError(
            f"{SQLITE} does not fit the tar: {problem} {ADVICE}",
            dataset=self.path,
            shard=file.path,
            offset=offset,
        )
