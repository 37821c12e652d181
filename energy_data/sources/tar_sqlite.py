"""`index.sqlite`: the place of every sample and of its parts by key, in Energon's tables."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from energy_data.errors import StructureError
from energy_data.sources.tar_scan import Scan

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


class SqliteWriter:
    """Writes an index beside its place, and puts it there when it is finished."""

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
            (number, _utf8(key), n, offsets[n], offsets[n + 1] - offsets[n])
            for n, key in enumerate(scan.keys)
        ]
        try:
            self._database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError as error:
            raise self._twice(shard, scan) from error
        parts = ((number, one[0], _utf8(one[1]), one[2], one[3]) for one in scan.parts)
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
            other = self._database.execute(query, (_utf8(key),)).fetchone()
            if other:
                return StructureError(
                    f"shard {self._shards[other[0]]} has a sample with this key too, and "
                    "index.sqlite finds samples by key. Rename one, or prepare without sqlite.",
                    shard=shard,
                    key=key,
                )
        return StructureError("a key is there twice. Rename one.", shard=shard)


def _utf8(text: str) -> str:
    """Return text that sqlite can hold: a name that is no UTF-8 is escaped."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
