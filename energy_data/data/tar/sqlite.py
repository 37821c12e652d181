"""`index.sqlite`: the place of every sample and of its parts by key, in Energon's tables."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from energy_data.data.tar.index import Scan
from energy_data.errors import StructureError

_TABLES = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL,
    sample_key TEXT NOT NULL UNIQUE,
    sample_index INTEGER NOT NULL,
    byte_offset INTEGER,
    byte_size INTEGER
);
CREATE TABLE sample_parts (
    tar_file_id INTEGER,
    sample_index INTEGER,
    part_name TEXT,
    content_byte_offset INTEGER,
    content_byte_size INTEGER
);
"""
_INDICES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq
    ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(
    tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


_MEND = "Run `energy-data prepare --force --sqlite`."


class SqliteIndex:
    """An index, opened on first use, for reading only; one connection per thread and process.

    Nothing is locked, as the file never changes: preparing again puts another in its place. So it
    may lie on a disk that cannot be written, or on a network disk that cannot lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()

    def rows(self, query: str, *values: str | int) -> Iterator[tuple[Any, ...]]:
        """Yield what a query finds. StructureError if the index is damaged."""
        try:
            yield from self._connection().execute(query, values)
        except sqlite3.Error as error:
            raise StructureError(f"{self.path} cannot be read: {error}. {_MEND}") from error

    def has_table(self, name: str) -> bool:
        """Return whether there is such a table; old preparations lack some."""
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = ?"
        return any(True for _ in self.rows(query, name))

    def _connection(self) -> sqlite3.Connection:
        opened: _Connection | None = getattr(self._local, "opened", None)
        if opened is None or opened.owner != os.getpid():
            opened = self._local.opened = _Connection(self.path)
        return opened.database


class _Connection:
    """A connection that closes itself with its thread; it does not survive a fork."""

    def __init__(self, path: Path) -> None:
        where = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        self.database = sqlite3.connect(where, uri=True, check_same_thread=False)
        self.owner = os.getpid()

    def __del__(self) -> None:
        if getattr(self, "owner", None) == os.getpid():
            self.database.close()


class SqliteWriter:
    """Writes an index under a temporary name and renames it when it is finished."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._part = path, path.with_name(f".{path.name}.part")
        self._part.unlink(missing_ok=True)
        self._database = sqlite3.connect(self._part)
        self._database.executescript(_TABLES)
        self._shards: list[str] = []

    def add(self, shard: str, scan: Scan) -> None:
        """Add a shard; its number is its place among the shards of `.info.json`."""
        number = len(self._shards)
        self._shards.append(shard)
        offsets = scan.offsets.tolist()
        rows = [
            (number, utf8(key), n, offsets[n], offsets[n + 1] - offsets[n])
            for n, key in enumerate(scan.keys)
        ]
        try:
            self._database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError as error:
            raise self._twice(shard, scan) from error
        parts = ((number, one[0], utf8(one[1]), one[2], one[3]) for one in scan.parts)
        self._database.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", parts)
        self._database.commit()

    def finish(self) -> None:
        """Make the indices of the tables and put the file in its place."""
        self._database.executescript(_INDICES)
        self._database.commit()
        self._database.close()
        self._part.replace(self._path)

    def abandon(self) -> None:
        """Remove what was written."""
        self._database.close()
        self._part.unlink(missing_ok=True)

    def _twice(self, shard: str, scan: Scan) -> StructureError:
        self._database.rollback()
        query = "SELECT tar_file_id FROM samples WHERE sample_key = ?"
        for key in scan.keys:
            other = self._database.execute(query, (utf8(key),)).fetchone()
            if other:
                return StructureError(
                    f"shard {self._shards[other[0]]} has a sample with this key too, and "
                    "index.sqlite finds samples by key. Let --fix-duplicates put each into a "
                    "folder of its shard's name, or prepare without sqlite (--no-sqlite).",
                    shard=shard,
                    key=key,
                )
        return StructureError("a key is there twice. Rename one.", shard=shard)


def utf8(text: str) -> str:
    """Return text as the index has it: a name that is no UTF-8 is escaped."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
