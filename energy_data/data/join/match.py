"""Which samples of several datasets have the same key: matched by sorting digests of keys.

A key counts as its BLAKE2b digest of 16 bytes: 10**9 keys have two alike with a probability of
10**-21. Memory is 16 bytes per key, and 50 while two datasets are matched, whatever the keys are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energy_data.data.files.local import open_anew
from energy_data.data.tar.index import find_index, index_beside, known_shard
from energy_data.data.tar.nv_meta import FOLDER, SQLITE, PartShards, is_prepared, read_counts
from energy_data.data.tar.scan import scan
from energy_data.data.tar.sqlite import SqliteIndex, utf8
from energy_data.errors import StructureError

Int64s = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]
"""[keys, 2]."""


def digests_of(keys: Iterable[str]) -> Digests:
    """Return the digest of each key, uint64 [keys, 2]. 0.9 us per key."""
    found = b"".join(
        [blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).digest() for key in keys]
    )
    return np.frombuffer(found, "<u8").reshape(-1, 2)


def duplicates(digests: Digests) -> list[tuple[int, int]]:
    """Return the places of equal digests, in pairs of neighbours, by their first place."""
    order, same = _sorted(digests)
    places = np.flatnonzero(same)
    return sorted(zip(order[places].tolist(), order[places + 1].tolist(), strict=True))


def match(primary: Digests, other: Digests) -> Int64s:
    """Return where in `other` each digest of `primary` is, int64 [primary]; -1: nowhere.

    Both are free of duplicates. 0.5 us per digest of both.
    """
    order, same = _sorted(np.concatenate([primary, other]))
    places = np.flatnonzero(same)
    where = np.full(len(primary), -1, np.int64)
    where[order[places]] = order[places + 1] - len(primary)  # sorting is stable: primary first
    return where


def _sorted(digests: Digests) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Return the order that sorts digests, and at which of them the next is equal."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    high, low = digests[order, 0], digests[order, 1]
    return order, (high[1:] == high[:-1]) & (low[1:] == low[:-1])


_KEYS = "SELECT sample_key, byte_offset FROM samples WHERE tar_file_id = ? ORDER BY sample_index"


class PartKeys:
    """The keys of a part, shard by shard; those of excluded samples are left out."""

    def __init__(self, part: PartShards) -> None:
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
