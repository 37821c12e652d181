"""Files of rows: Parquet, and Arrow's files and streams, read group by group.

    file = open_table("/data/part-0.parquet")
    file.read(0, ["text"])  # -> the rows of the first group, a pyarrow.Table

A group is what is cheap only as a whole: a row group of Parquet, a record batch of Arrow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

from attrs import field, frozen

from energy_data.data.files.local import LocalFile, Version, keep_open, open_file, version_of
from energy_data.errors import MissingExtraError, StructureError
from energy_data.remote.cache_space import Range, merged
from energy_data.remote.client import held
from energy_data.remote.mirror_paths import is_mirrored

_PARQUET, _ARROW = b"PAR1", b"ARROW1\x00\x00"
_CONTINUED = b"\xff\xff\xff\xff"  # begins a message of a stream
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3  # kinds of messages
_LARGEST_HEAD = 1 << 28  # bytes of a message without its body
_TAIL = 8  # bytes at the end of a Parquet file: the length of its footer, and its name
_END = _CONTINUED + b"\x00\x00\x00\x00"


def pyarrow() -> Any:
    """Return the module. MissingExtraError if it is not installed."""
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: PLC0415 - it has no types; an extra
    except ImportError as error:
        raise MissingExtraError("reading Parquet and Arrow files", "parquet") from error
    return pyarrow


ReadGroup = Callable[[int, list[str]], Any]
"""Returns columns of a group, a pyarrow.Table."""

GroupRanges = Callable[[int, Sequence[str]], list[Range]]
"""Returns the bytes that columns of a group are read from."""


class DamagedGroupError(StructureError):
    """A group cannot be decoded; other groups of its file may be."""


@frozen(kw_only=True, eq=False)
class TableFile:
    """An open file of rows."""

    path: str
    version: Version | None
    schema: Any  # of pyarrow
    names: Sequence[str]  # of its columns
    counts: Sequence[int]  # rows of each group
    ranges: GroupRanges
    _read: ReadGroup = field(alias="read_group")
    ends: Sequence[int] = field(init=False)  # rows up to the end of each group

    @ends.default
    def _accumulated(self) -> list[int]:
        return list(accumulate(self.counts))

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.ends[-1] if self.ends else 0

    def read(self, group: int, columns: list[str]) -> Any:
        """Return columns of a group as a pyarrow.Table.

        Raises DamagedGroupError if it cannot be decoded, StructureError if the file cannot be read.
        """
        arrow = pyarrow()
        try:
            with held(self.ranges(group, columns) if is_mirrored(self.path) else ()):
                found = self._read(group, columns)
        except (MemoryError, StructureError):
            raise
        except (arrow.ArrowException, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the system
                problem = f"cannot be read: {error.strerror}. Check the disk or the mount."
                raise StructureError(problem, shard=self.path) from error
            problem = f"group {group} cannot be read: {error}. Write the file again."
            raise DamagedGroupError(problem, shard=self.path) from error
        if found.num_rows != self.counts[group]:
            problem = f"group {group} has {found.num_rows} rows, not {self.counts[group]}"
            raise DamagedGroupError(f"{problem}. Write the file again.", shard=self.path)
        return found


def open_table(path: str, version: Version | None = None) -> TableFile:
    """Return a file of rows; files that are used often stay open.

    version: the file must have this version, if it is given. Raises StructureError for a file that
    is damaged or of no such format, MissingExtraError without pyarrow.
    """
    found: TableFile = keep_open(_open, path, version or version_of(path))
    return found


def _open(path: str, version: Version | None) -> TableFile:
    file, arrow = open_file(path, version), pyarrow()
    begin = file.read(0, min(file.size, len(_ARROW)))
    try:
        if begin[:4] == _PARQUET:
            facts = _open_parquet(file)
        elif begin == _ARROW or begin[:4] == _CONTINUED:
            facts = _open_stream(file, len(_ARROW) if begin == _ARROW else 0)
        else:
            raise StructureError(
                f"is no Parquet and no Arrow file: it begins {begin!r}. Write it again.", shard=path
            )
        schema, counts, ranges, read_group = facts
        return TableFile(
            path=path,
            version=version,
            schema=schema,
            names=list(schema.names),
            counts=counts,
            ranges=ranges,
            read_group=read_group,
        )
    except (arrow.ArrowException, OSError, ValueError, struct.error) as error:
        raise StructureError(f"cannot be opened: {error}. Write it again.", shard=path) from error


_Facts = tuple[Any, list[int], GroupRanges, ReadGroup]
"""The schema of a file, the rows of each group, where groups are, and what reads one."""


def _open_parquet(opened: LocalFile) -> _Facts:
    # By its descriptor: the path may be another file by now.
    path = f"/proc/self/fd/{opened.fd}"
    with held(_footer(opened) if is_mirrored(opened.path) else (), always=True):
        file = pyarrow().parquet.ParquetFile(path, memory_map=False, pre_buffer=False)
    counts = [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]

    def ranges(group: int, columns: Sequence[str]) -> list[Range]:
        found, facts = list[Range](), file.metadata.row_group(group)
        for column in map(facts.column, range(facts.num_columns)):
            if any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in columns):
                begin = column.data_page_offset
                if column.has_dictionary_page:
                    begin = min(begin, column.dictionary_page_offset or begin)
                found.append((opened.path, begin, begin + column.total_compressed_size))
        return merged(found)

    def read_group(group: int, columns: list[str]) -> Any:
        # It reads nested columns too that have such a path.
        return file.read_row_group(group, columns, use_threads=False).select(columns)

    return file.schema_arrow, counts, ranges, read_group


def _footer(file: LocalFile) -> list[Range]:
    """Return the bytes of the footer of a Parquet file in a cache."""
    if file.size < _TAIL:
        return []
    length, magic = struct.unpack("<I4s", file.read(file.size - _TAIL, _TAIL))
    begin = max(file.size - _TAIL - length, 0) if magic == _PARQUET else 0
    return [(file.path, 0, len(_PARQUET)), (file.path, begin, file.size)]


def _open_stream(file: LocalFile, at: int) -> _Facts:
    """Return what is in a stream of Arrow that begins at byte `at`.

    A file of Arrow is a stream with a footer. Reads the heads of all messages, and no batch.
    """
    head, places, counts = list[bytes](), list[tuple[int, int]](), list[int]()
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
            places.append((at, end))
            counts.append(message.num_rows)
        elif places and message.kind == _DICTIONARY:
            raise ValueError("its dictionaries change between batches. Write it with one")
        else:
            head.append(file.read(at, end - at))
        at = end
    prefix = b"".join(head)
    ipc = pyarrow().ipc

    def read_group(group: int, columns: list[str]) -> Any:
        first, end = places[group]
        data = b"".join([prefix, file.read(first, end - first), _END])
        found = ipc.open_stream(data).read_all().select(columns)
        found.validate(full=True)  # offsets in the file are used as they are
        return found

    def ranges(group: int, _columns: Sequence[str]) -> list[Range]:
        return [(file.path, *places[group])]

    return ipc.open_stream(prefix + _END).schema, counts, ranges, read_group


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
