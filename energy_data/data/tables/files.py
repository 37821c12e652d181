"""Files of rows: Parquet, and Arrow's files and streams, read group by group.

    file = open_table("/data/part-0.parquet")
    file.read(0, ["text"])  # -> the rows of the first group, a pyarrow.Table

A group is what is cheap only as a whole: a row group of Parquet, a record batch of Arrow. A large
one is read in pieces, from the first to the last.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import accumulate
from operator import methodcaller
from typing import Any, Protocol

from attrs import field, frozen

from energy_data.data.files.local import (
    CHANGED,
    LocalFile,
    Version,
    keep_open,
    open_file,
    version_of,
)
from energy_data.errors import MissingExtraError, StructureError
from energy_data.remote.cache_space import Range, merged
from energy_data.remote.client import held
from energy_data.remote.mirror_paths import is_mirrored

_LFS = b"version https://git-lfs.github.com/spec/v1"
_PARQUET, _ARROW = b"PAR1", b"ARROW1\x00\x00"
_CONTINUED = b"\xff\xff\xff\xff"  # begins a message of a stream
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3  # kinds of messages
_LARGEST_HEAD = 1 << 28  # bytes of a message without its body
_BUFFER = 1 << 16  # bytes of a column that are read at once, if groups are read in pieces
_PAGE, _ROWS_PER_BATCH = 1 << 20, 1024  # bytes of a page, rows written at once: pyarrow's defaults
_TAIL = 8  # bytes at the end of a Parquet file: the length of its footer, and its name
_END = _CONTINUED + b"\x00\x00\x00\x00"


def pyarrow() -> Any:
    """Return the module. MissingExtraError if it is not installed."""
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: PLC0415 - it has no types; an extra
    except ImportError as error:
        raise MissingExtraError("reading Parquet and Arrow files", "parquet") from error
    return pyarrow


class TableGroups(Protocol):
    """The groups of an open file, numbered from 0."""

    schema: Any  # of pyarrow
    counts: list[int]  # rows of each group

    def ranges(self, group: int, columns: Sequence[str]) -> list[Range]:
        """Return the bytes that columns of a group are read from."""

    def read(self, group: int, columns: list[str]) -> Any:
        """Return columns of a group, a pyarrow.Table."""

    def num_bytes(self, group: int, columns: Sequence[str]) -> int:
        """Return how many bytes columns of a group have, about."""

    def page_bytes(self, group: int, columns: Sequence[str]) -> int:
        """Return how many bytes the pages have that are decoded at a time, about."""

    def pieces(self, group: int, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield columns of a group, as pyarrow.RecordBatch of `rows` rows, the last ones fewer."""


class DamagedGroupError(StructureError):
    """A group cannot be decoded; other groups of its file may be."""


@frozen(kw_only=True, eq=False)
class TableFile:
    """An open file of rows."""

    path: str
    version: Version | None
    groups: TableGroups
    names: Sequence[str] = field(init=False)  # of its columns
    ends: Sequence[int] = field(init=False)  # rows up to the end of each group

    @names.default
    def _names(self) -> list[str]:
        return list(self.groups.schema.names)

    @ends.default
    def _accumulated(self) -> list[int]:
        return list(accumulate(self.groups.counts))

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.ends[-1] if self.ends else 0

    def read(self, group: int, columns: list[str]) -> Any:
        """Return columns of a group as a pyarrow.Table.

        Raises DamagedGroupError if it cannot be decoded, StructureError if the file cannot be read.
        """
        with self._reading(group, columns):
            found = self.groups.read(group, columns)
        if found.num_rows != (count := self.groups.counts[group]):
            raise self._damaged(f"group {group} has {found.num_rows} rows, not {count}")
        return found

    def pieces(self, group: int, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield columns of a group as pyarrow.Table of `rows` rows, the last one of the rest.

        Holds the pages of each column that it is within. Raises errors as `read`, and ends with
        them; StructureError for a group of fewer rows than it should have.
        """
        batches: Iterator[Any] | None = None
        num_rows = left = self.groups.counts[group]
        waiting = empty = pyarrow().table({})
        while left:
            count = min(rows, left)
            try:
                with self._reading(group, columns):
                    batches = batches or self.groups.pieces(group, columns, rows)
                    # They are shorter where text has more bytes than an array may have.
                    while waiting.num_rows < count and (batch := next(batches, None)) is not None:
                        waiting = pyarrow().Table.from_batches([*waiting.to_batches(), batch])
                        del batch
            except DamagedGroupError as error:
                if "end of stream" in str(error):  # a column has fewer values than others
                    raise self._shifted(f"group {group} ends early") from error
                raise
            if waiting.num_rows < count:
                found = num_rows - left + waiting.num_rows
                raise self._shifted(f"group {group} has {found} rows, not {num_rows}")
            piece, left = waiting.slice(0, count), left - count
            # A slice holds the memory of all rows.
            waiting = waiting.slice(count) if waiting.num_rows > count else empty
            yield piece
            del piece

    @contextmanager
    def _reading(self, group: int, columns: Sequence[str]) -> Iterator[None]:
        """Hold the bytes of a group, and say what is wrong if it cannot be read."""
        now = version_of(self.path)
        if self.version is not None and (now is None or now[1:] != self.version[1:]):
            raise StructureError(CHANGED, shard=self.path)
        try:
            with held(self.groups.ranges(group, columns) if is_mirrored(self.path) else ()):
                yield
        except (MemoryError, StructureError):
            raise
        except (pyarrow().ArrowException, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the system
                problem = f"cannot be read: {error.strerror}. Check the disk or the mount."
                raise StructureError(problem, shard=self.path) from error
            raise self._damaged(f"group {group} cannot be read: {error}") from error

    def _shifted(self, problem: str) -> StructureError:
        # In a damaged page of one column may be fewer values. Those behind it come too early then.
        problem = f"{problem}, and rows of it that were read may mix values of several"
        return StructureError(f"{problem}. Write the file again.", shard=self.path)

    def _damaged(self, problem: str) -> DamagedGroupError:
        return DamagedGroupError(f"{problem}. Write the file again.", shard=self.path)


def open_table(path: str, version: Version | None = None) -> TableFile:
    """Return a file of rows; files that are used often stay open.

    version: the file must have this version, if it is given. Raises StructureError for a file that
    is damaged or of no such format, MissingExtraError without pyarrow.
    """
    found: TableFile = keep_open(_open, path, version or version_of(path))
    return found


def _open(path: str, version: Version | None) -> TableFile:
    file = open_file(path, version)
    begin = file.read(0, min(file.size, len(_ARROW)))
    try:
        if begin[:4] == _PARQUET:
            groups: TableGroups = _RowGroups(file)
        elif begin == _ARROW or begin[:4] == _CONTINUED:
            groups = _RecordBatches(file, len(_ARROW) if begin == _ARROW else 0)
        elif file.read(0, min(file.size, len(_LFS))) == _LFS:
            problem = "is a pointer of Git LFS in place of the file"
            raise StructureError(f"{problem}. Run `git lfs pull`.", shard=path)
        else:
            raise StructureError(
                f"is no Parquet and no Arrow file: it begins {begin!r}. Write it again.", shard=path
            )
        return TableFile(path=path, version=version, groups=groups)
    except (pyarrow().ArrowException, OSError, ValueError, struct.error) as error:
        problem = f"cannot be opened: {error}".rstrip(".")
        raise StructureError(f"{problem}. Write it again.", shard=path) from error


class _RowGroups:
    """The row groups of a Parquet file."""

    def __init__(self, opened: LocalFile) -> None:
        # By its descriptor: the path may be another file by now.
        path = f"/proc/self/fd/{opened.fd}"
        with held(_footer(opened) if is_mirrored(opened.path) else (), always=True):
            self._file = self._open(path)
        self._opened, self._facts = opened, self._file.metadata
        self.schema = self._file.schema_arrow
        self.counts = [self._facts.row_group(n).num_rows for n in range(self._facts.num_row_groups)]

    def ranges(self, group: int, columns: Sequence[str]) -> list[Range]:
        found = list[Range]()
        for column in self._columns(group, columns):
            begin = column.data_page_offset
            if column.has_dictionary_page:
                begin = min(begin, column.dictionary_page_offset or begin)
            found.append((self._opened.path, begin, begin + column.total_compressed_size))
        return merged(found)

    def num_bytes(self, group: int, columns: Sequence[str]) -> int:
        return sum(self._sizes(group, columns))

    def page_bytes(self, group: int, columns: Sequence[str]) -> int:
        # A page, also one of a dictionary, ends with the batch of rows that makes it large enough.
        batches = max(self.counts[group] / _ROWS_PER_BATCH, 1)
        sizes = self._sizes(group, columns)
        return sum(min(size, int(size / batches) + _PAGE) for size in sizes)

    def _sizes(self, group: int, columns: Sequence[str]) -> list[int]:
        """Return the bytes of each column that is read; values of a dictionary have some too."""
        found = self._columns(group, columns)
        return [max(one.total_uncompressed_size, 8 * self.counts[group]) for one in found]

    def read(self, group: int, columns: list[str]) -> Any:
        # It reads nested columns too that have such a path.
        return self._file.read_row_group(group, columns, use_threads=False).select(columns)

    def pieces(self, group: int, columns: list[str], rows: int) -> Iterator[Any]:
        # A file of its own, as it keeps the number of rows; with a buffer, else it reads all bytes
        # of the group at once.
        path = f"/proc/self/fd/{self._opened.fd}"
        file = self._open(path, metadata=self._facts, buffer_size=_BUFFER)
        batches = file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False)
        return map(methodcaller("select", columns), batches)  # holds no batch

    def _open(self, path: str, **options: Any) -> Any:
        options |= {"memory_map": False, "pre_buffer": False, "page_checksum_verification": True}
        try:
            return pyarrow().parquet.ParquetFile(path, **options)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            keep_open.cache_clear()
            return pyarrow().parquet.ParquetFile(path, **options)

    def _columns(self, group: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yield what the footer says of each column, or part of one, that is read."""
        facts = self._facts.row_group(group)
        for column in map(facts.column, range(facts.num_columns)):
            if any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in columns):
                yield column


def _footer(file: LocalFile) -> list[Range]:
    """Return the bytes of the footer of a Parquet file in a cache."""
    if file.size < _TAIL:
        return []
    length, magic = struct.unpack("<I4s", file.read(file.size - _TAIL, _TAIL))
    begin = max(file.size - _TAIL - length, 0) if magic == _PARQUET else 0
    return [(file.path, 0, len(_PARQUET)), (file.path, begin, file.size)]


class _RecordBatches:
    """The record batches of a stream of Arrow; a file of Arrow is one with a footer."""

    def __init__(self, file: LocalFile, at: int) -> None:
        """Read the heads of all messages, and no batch. The stream begins at byte `at`."""
        self._file = file
        head, self._places, self.counts = list[bytes](), list[tuple[int, int]](), list[int]()
        while at + 8 <= file.size:
            mark, size = struct.unpack("<4si", file.read(at, 8))
            if mark != _CONTINUED or size == 0:
                break
            if not 0 < size <= _LARGEST_HEAD:
                raise ValueError(f"the message at byte {at} has a head of {size} bytes")
            message = _Message(file.read(at + 8, size))
            end = at + 8 + size + message.body_length
            if end > file.size:
                raise ValueError(f"the message at byte {at} ends at {end}, beyond its {file.size}")
            if message.kind == _BATCH:
                self._places.append((at, end))
                self.counts.append(message.num_rows)
            elif self._places and message.kind == _DICTIONARY:
                raise ValueError("its dictionaries change between batches. Write it with one")
            else:
                head.append(file.read(at, end - at))
            at = end
        self._prefix = b"".join(head)
        self.schema = pyarrow().ipc.open_stream(self._prefix + _END).schema

    def ranges(self, group: int, _columns: Sequence[str]) -> list[Range]:
        return [(self._file.path, *self._places[group])]

    def num_bytes(self, group: int, _columns: Sequence[str]) -> int:
        first, end = self._places[group]
        return end - first

    page_bytes = num_bytes  # a batch is in memory as long as pieces of it are read

    def read(self, group: int, columns: list[str]) -> Any:
        first, end = self._places[group]
        data = b"".join([self._prefix, self._file.read(first, end - first), _END])
        found = pyarrow().ipc.open_stream(data).read_all().select(columns)
        found.validate(full=True)  # offsets in the file are used as they are
        return found

    def pieces(self, group: int, columns: list[str], rows: int) -> Iterator[Any]:
        return map(_copied, self.read(group, columns).to_batches(rows))


def _copied(batch: Any) -> Any:
    """Return a slice of a record batch with memory of its own, if its types can be copied."""
    arrow = pyarrow()
    arrays = []
    for array in batch.columns:
        # Arrow cannot join arrays of a few types. A slice has the same values, and more memory.
        with suppress(arrow.ArrowNotImplementedError):
            array = arrow.concat_arrays([array, array.slice(0, 0)])  # of one it copies nothing
        arrays.append(array)
    return arrow.RecordBatch.from_arrays(arrays, schema=batch.schema)


class _Message:
    """The head of a message of Arrow, a flatbuffer: https://arrow.apache.org/docs/format."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._table = self._number("<I", 0)
        self.kind: int = self._field(self._table, 1, "<B")
        self.body_length: int = self._field(self._table, 3, "<q")
        if self.body_length < 0:
            raise ValueError(f"a message has a body of {self.body_length} bytes")

    @cached_property
    def num_rows(self) -> int:
        """The rows of a batch."""
        at = self._slot(self._table, 2)
        length = self._field(at + self._number("<I", at), 0, "<q") if at else 0
        if length < 0:
            raise ValueError(f"a batch has {length} rows")
        return length

    def _number(self, layout: str, at: int) -> int:
        (found,) = struct.unpack_from(layout, self._data, at)
        return int(found)

    def _slot(self, table: int, field: int) -> int:
        """Return where a field of a table is; 0: it has its default."""
        fields = table - self._number("<i", table)
        offset = 4 + 2 * field
        if fields < 0 or offset >= self._number("<H", fields):
            return 0
        found = self._number("<H", fields + offset)
        return table + found if found else 0

    def _field(self, table: int, field: int, layout: str) -> int:
        at = self._slot(table, field)
        return self._number(layout, at) if at else 0
