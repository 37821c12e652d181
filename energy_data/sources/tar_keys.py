"""The keys of a part of a dataset of tars, without reading its samples.

They are in `index.sqlite` where that is there and fits the tars, and else in the tars' headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energy_data.errors import StructureError
from energy_data.sources.tar_index import index_beside, known_shard
from energy_data.sources.tar_meta import FOLDER, SQLITE, SplitPart, is_prepared, read_counts
from energy_data.sources.tar_plain import find_index
from energy_data.sources.tar_scan import scan
from energy_data.sources.tar_sqlite import SqliteIndex, utf8
from energy_data.storage.files import open_anew

_KEYS = "SELECT sample_key, byte_offset FROM samples WHERE tar_file_id = ? ORDER BY sample_index"

Int64s = npt.NDArray[np.int64]


class PartKeys:
    """The keys of a part, shard by shard; those of excluded samples are left out."""

    def __init__(self, part: SplitPart) -> None:
        self._part, self._root = part, Path(part.root)
        self._begins = np.cumsum([0, *part.counts])
        self._prepared = is_prepared(self._root)
        database = self._root / FOLDER / SQLITE
        self._index = SqliteIndex(database) if self._prepared and database.is_file() else None
        shards = read_counts(self._root) if self._index else {}
        self._numbers = {shard: number for number, shard in enumerate(shards)}

    def __iter__(self) -> Iterator[tuple[Int64s, list[str]]]:
        """Yield for each shard the numbers of its samples in the part, and their keys.

        Raises StructureError for a shard that is damaged or does not fit its index.
        """
        excluded = self._part.excluded
        for row, shard in enumerate(self._part.shards):
            keys = self._keys(row)
            numbers = np.arange(len(keys)) + self._begins[row]
            if excluded:
                kept = [n for n, key in enumerate(keys) if f"{shard}/{key}" not in excluded]
                numbers, keys = numbers[kept], [keys[n] for n in kept]
            yield numbers, keys

    def name(self, number: int) -> str:
        """Return shard and key of a sample of the part, for messages."""
        row = int(np.searchsorted(self._begins, number, "right")) - 1
        return f"{self._part.shards[row]}/{self._keys(row)[number - int(self._begins[row])]}"

    def _keys(self, row: int) -> list[str]:
        """Return the keys of a shard."""
        shard = self._part.shards[row]
        tar = str(self._root / shard)
        index = None if self._prepared else find_index(tar)
        known = known_shard(tar, index or index_beside(tar), self._part.counts[row])
        offsets = known.open().offsets
        if self._index is not None and shard in self._numbers:
            rows = list(self._index.rows(_KEYS, self._numbers[shard]))
            begins = [begin for _, begin in rows]
            if begins == offsets[:-1].tolist():
                return [key for key, _ in rows]
        found = scan(open_anew(tar))
        if not np.array_equal(found.offsets, offsets):
            raise StructureError(
                "its index does not fit it. Run `energy-data prepare --force`.", shard=tar
            )
        return [utf8(key) for key in found.keys]
