"""The files in a prepared dataset of tars, by key, found by its `index.sqlite`.

store = WebdatasetFileStore("/data/images")
data, source = store["photos/0001.jpg"]
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from energy_data.core.sample import SampleSource
from energy_data.data.decode.av import AVMetadata
from energy_data.data.decode.media import ImageMetadata, fact_of
from energy_data.data.files.local import LocalFile, open_file
from energy_data.data.files.stores import FileStore
from energy_data.data.tar.header import BLOCK, Fault, TarMember, split_name, walk
from energy_data.data.tar.nv_meta import FOLDER, SQLITE, is_prepared, read_counts
from energy_data.data.tar.sqlite import SqliteIndex, utf8
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
_SAMPLE = "SELECT tar_file_id, byte_offset, byte_size FROM samples WHERE sample_key = ?"
_ALL_SAMPLES = "SELECT sample_key, byte_size, tar_file_id FROM samples"
_NUM_SAMPLES = "SELECT COUNT(*) FROM samples"
_NUM_BYTES = "SELECT SUM(byte_size) FROM samples"


class _Range(NamedTuple):
    """A range of bytes in a shard."""

    shard: int  # its number in `.info.json`
    offset: int
    size: int


class WebdatasetFileStore(FileStore[bytes]):
    """The parts of all samples of a dataset, whatever their split, by name of the file in its tar.

    A lookup costs one query of `index.sqlite` and one read. Raises SpecError, when it is made, if
    there is no such index.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        if not is_prepared(Path(path)):
            problem = "it is no prepared dataset, and files are found by its index"
            raise SpecError(f"{path}: {problem}. Run `energy-data prepare --sqlite` on it.")
        index = Path(path, FOLDER, SQLITE)
        if not index.is_file():
            raise SpecError(
                f"{path}: it has no {FOLDER}/{SQLITE}, by which files are found. Run `energy-data "
                "prepare --force --sqlite` on it."
            )
        self._index = SqliteIndex(index)

    def __reduce__(self) -> tuple[type[WebdatasetFileStore], tuple[str]]:
        return type(self), (self.path,)

    def __repr__(self) -> str:
        return f"WebdatasetFileStore({self.path})"

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._number(_NUM_SAMPLES)

    def __getitem__(self, key: str) -> tuple[bytes, SampleSource]:
        """Return the bytes of a file. KeyError if there is none; StructureError for damage."""
        named = split_name(key)
        if named is not None:
            found = self._indexed(*named) if self._has_parts else self._walked(named[0], key)
            if found is not None:
                shard, file = self._open(found.shard)
                return self._read(file, found, key), SampleSource(self.path, shard, key)
        raise KeyError(f"{self.path}: there is no file {key!r} in its tars.")

    def get_path(self) -> str:
        """Return the path of the dataset."""
        return self.path

    def get_total_size(self) -> int:
        """Return the bytes of all samples, headers included."""
        return self._number(_NUM_BYTES)

    def get_media_metadata(self, key: str) -> AVMetadata | ImageMetadata:
        """Return what is known about an image, audio or video file.

        Raises KeyError if nothing is, SpecError if nothing was collected for the dataset.
        """
        return fact_of(self._index, self.path, key, "prepare --force")

    def list_all_samples(self) -> Iterator[tuple[str, int, int]]:
        """Yield each sample's key, its bytes with headers, and the number of its shard."""
        yield from self._index.rows(_ALL_SAMPLES)

    def list_all_sample_parts(self) -> Iterator[tuple[str, int, int]]:
        """Yield each file's key, its bytes, and the number of its shard, in order."""
        yield from self._index.rows(_ALL_PARTS)

    def list_sample_parts(
        self,
        sample_key: str,
        slow_mode: bool = False,
    ) -> Iterator[tuple[str, int, int]]:
        """Yield the parts of a sample: extension, bytes, and number of the shard.

        slow_mode: look into the tar, as for indices of old preparations, which do not list parts.
        """
        if self._has_parts and not slow_mode:
            yield from self._index.rows(_PARTS, utf8(sample_key))
            return
        for shard, member in self._members(sample_key):
            if named := split_name(member.name):
                yield named[1], member.size, shard

    @cached_property
    def _has_parts(self) -> bool:
        return self._index.has_table("sample_parts")

    @cached_property
    def _shards(self) -> list[str]:
        return list(read_counts(Path(self.path)))

    def _number(self, query: str) -> int:
        return next((int(number or 0) for (number,) in self._index.rows(query)), 0)

    def _indexed(self, sample_key: str, extension: str) -> _Range | None:
        rows = self._index.rows(_PART, utf8(sample_key), utf8(extension))
        return next((_Range(*row) for row in rows), None)

    def _walked(self, sample_key: str, key: str) -> _Range | None:
        for shard, member in self._members(sample_key):
            if member.name == key:
                return _Range(shard, member.data, member.size)
        return None

    def _members(self, sample_key: str) -> Iterator[tuple[int, TarMember]]:
        """Yield the files of a sample, with the number of their shard."""
        for row in self._index.rows(_SAMPLE, utf8(sample_key)):
            where = _Range(*row)
            _, file = self._open(where.shard)
            end = where.offset + where.size
            try:
                members = list(walk(file.read, where.offset, end))
            except Fault as fault:
                raise self._stale(file, fault.offset, fault.problem) from fault
            yield from ((where.shard, member) for member in members if member.regular)

    def _open(self, shard: int) -> tuple[str, LocalFile]:
        if not 0 <= shard < len(self._shards):
            problem = f"its {SQLITE} has a shard number {shard} of {len(self._shards)}"
            raise StructureError(f"{problem}. {_MEND}", dataset=self.path)
        name = self._shards[shard]
        return name, open_file(f"{self.path}/{name}")

    def _read(self, file: LocalFile, found: _Range, key: str) -> bytes:
        """Return a payload after checking that its own header precedes it."""
        if found.offset < BLOCK or found.size < 0 or found.offset % BLOCK:
            raise self._stale(file, found.offset, f"{key!r} cannot be there.")
        try:  # the header before it is its own, also after long names and pax records
            member = next(walk(file.read, found.offset - BLOCK, file.size))
        except Fault as fault:
            raise self._stale(file, fault.offset, fault.problem) from fault
        if member.size != found.size:
            problem = f"{key!r} has {member.size} bytes there, not {found.size}."
            raise self._stale(file, found.offset, problem)
        return file.read(found.offset, found.size)

    def _stale(self, file: LocalFile, offset: int, problem: str) -> StructureError:
        return StructureError(
            f"{SQLITE} does not fit the tar: {problem} {_MEND}",
            dataset=self.path,
            shard=file.path,
            offset=offset,
        )


_MEND = "Run `energy-data prepare --force --sqlite`."
