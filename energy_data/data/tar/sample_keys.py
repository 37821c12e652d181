"""The keys of the samples of a part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from energy_data.data.files.local import open_file
from energy_data.data.nv_meta import FOLDER, SQLITE, NvMeta
from energy_data.data.shards import PartShards, offsets_of, shard_opener
from energy_data.data.tar.index import scan
from energy_data.data.tar.sqlite import SqliteIndex, utf8
from energy_data.errors import StructureError

_KEYS = "SELECT sample_key, byte_offset FROM samples WHERE tar_file_id = ? ORDER BY sample_index"
_ROW = "SELECT sample_index, byte_offset FROM samples WHERE sample_key = ? AND tar_file_id = ?"


class SampleKeys:
    """Finds keys in index.sqlite where it fits the index of a shard, else in the tar."""

    def __init__(self, part: PartShards) -> None:
        self._part, self._open = part, shard_opener(part)
        database = Path(part.root, FOLDER, SQLITE)
        self._index = None if part.indices or not database.is_file() else SqliteIndex(database)
        prepared = NvMeta.of(Path(part.root)) if self._index else None
        shards = {} if prepared is None else prepared.counts
        self._ids = {shard: number for number, shard in enumerate(shards)}  # in index.sqlite

    def of_shard(self, number: int) -> list[str]:
        """Return the keys of a shard, row by row. StructureError if its index does not fit it.

        Without index.sqlite this reads all headers of the shard.
        """
        shard = self._part.shards[number]
        offsets = offsets_of(self._open, number, self._part.counts[number])
        if self._index is not None and shard in self._ids:
            rows = list(self._index.rows(_KEYS, self._ids[shard]))
            if [begin for _, begin in rows] == offsets[:-1].tolist():
                return [key for key, _ in rows]
        tar, _ = self._part.paths(number)
        found = scan(open_file(tar))
        if not np.array_equal(found.offsets, offsets):
            raise StructureError(
                "its index does not fit it. Run `energy-data prepare --tar-index-only`.", shard=tar
            )
        return [utf8(key) for key in found.keys]

    def rows(self, number: int, keys: Sequence[str]) -> list[int | None]:
        """Return the row in a shard of each key; None for a key that the shard does not have."""
        found = [self._indexed_row(number, key) for key in keys]
        if None in found:
            rows = {key: row for row, key in enumerate(self.of_shard(number))}
            found = [rows.get(utf8(key)) for key in keys]
        return found

    def _indexed_row(self, number: int, key: str) -> int | None:
        """Return the row of a key in index.sqlite; None if it is not there, or does not fit."""
        shard, count = self._part.shards[number], self._part.counts[number]
        if self._index is not None and shard in self._ids:
            for row, begin in self._index.rows(_ROW, utf8(key), self._ids[shard]):
                if 0 <= row < count:
                    block = self._open(number, row)
                    if int(block.offsets[row - block.first]) == begin:
                        return int(row)
        return None
