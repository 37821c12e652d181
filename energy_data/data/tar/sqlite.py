"""`index.sqlite`: the place of every sample and of its parts by key, in Energon's tables."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from energy_data.data.shards import Scan
from energy_data.errors import StructureError
from energy_data.remote.client import fetch_whole

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
ADVICE = "Run `energy-data prepare --tar-index-only`."


class SqliteIndex:
    """An index, opened on first use, for reading only; one connection per thread and process.

    Nothing is locked, as the file never changes: preparing again replaces it. So it may be on a
    disk that is read-only, or on a network disk without locks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()

    def rows(self, query: str, *values: str | int) -> Iterator[tuple[Any, ...]]:
        """Yield what a query finds. StructureError if the index is damaged."""
        try:
            yield from self._connection().execute(query, values)
        except sqlite3.Error as error:
            raise StructureError(f"{self.path} cannot be read: {error}. {ADVICE}") from error

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
        fetch_whole(str(path))
        where = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        self.database = sqlite3.connect(where, uri=True, check_same_thread=False)
        self.owner = os.getpid()

    def __del__(self) -> None:
        if getattr(self, "owner", None) == os.getpid():
            self.database.close()


@contextmanager
def rewritten(
    path: Path, tmp: Path | None = None, *, keep: bool = False
) -> Iterator[sqlite3.Connection]:
    """Yield a database to write, which replaces the one at `path` if the block raises no error.

    tmp: folder in which it is built; by default that of `path`. keep: start with what is in the
    old one.
    """
    new_folder = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with nullcontext(path.parent) if tmp is None else _folder_in(tmp) as folder:
        built = Path(folder, part.name)
        built.unlink(missing_ok=True)
        if keep and path.exists():
            shutil.copy(path, built)
        connection = sqlite3.connect(built)
        try:
            yield connection
            connection.commit()
            connection.close()
            if built != part:
                shutil.copy(built, part)
            part.replace(path)
        finally:
            connection.close()
            built.unlink(missing_ok=True)
            part.unlink(missing_ok=True)
            if new_folder and not path.exists():
                path.parent.rmdir()


def _folder_in(parent: Path) -> TemporaryDirectory[str]:
    parent.mkdir(parents=True, exist_ok=True)
    return TemporaryDirectory(prefix="energy-data-", dir=parent)


@contextmanager
def new_index(path: Path, tmp: Path | None = None) -> Iterator[Callable[[str, Scan], None]]:
    """Yield a function that adds a shard, with its parts, to a new index.

    The number of a shard is its place among the shards of `.info.json`. StructureError for a key
    that another shard has too. tmp: folder in which it is built.
    """
    shards: list[str] = []

    def add(shard: str, found: Scan) -> None:
        number, offsets = len(shards), found.offsets.tolist()
        shards.append(shard)
        rows = [
            (number, utf8(key), n, offsets[n], offsets[n + 1] - offsets[n])
            for n, key in enumerate(found.keys)
        ]
        try:
            database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError as error:
            database.rollback()
            raise _duplicate(database, shards, found) from error
        parts = ((number, one[0], utf8(one[1]), one[2], one[3]) for one in found.parts)
        database.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", parts)
        database.commit()

    with rewritten(path, tmp) as database:
        database.executescript(_TABLES)
        yield add
        database.executescript(_INDICES)


def _duplicate(database: sqlite3.Connection, shards: list[str], found: Scan) -> StructureError:
    """Return an error that names a key of the last shard that another one has."""
    query = "SELECT tar_file_id FROM samples WHERE sample_key = ?"
    for key in found.keys:
        other = database.execute(query, (utf8(key),)).fetchone()
        if other:
            return StructureError(
                f"shard {shards[other[0]]} has a sample with this key too, and index.sqlite finds "
                "samples by key. Let --fix-duplicates put each into a folder of its shard's name, "
                "or prepare without sqlite (--no-sqlite).",
                shard=shards[-1],
                key=key,
            )
    return StructureError("it has a key twice. Rename one sample.", shard=shards[-1])


def utf8(text: str) -> str:
    """Return text as the index has it: a name that is no UTF-8 is escaped."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
