"""Filter indices: which samples of a dataset are kept, by name, in Energon's layout.

filter_NAME.json   version: 1, filtered_shard_counts: {shard: number of samples kept}
filter_NAME.idx    the numbers of the samples kept, uint64 in increasing order

They stand in `.nv-meta`; those of a dataset of one file next to it, as `FILE.NAME.json` and
`FILE.NAME.idx`. A number counts the samples of all shards, in the order of `.info.json`, so one
filter is for all parts of a dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from energy_data.core.arrays import Int64s
from energy_data.data.files.local import LocalFile, keep_open, open_file, version_of
from energy_data.data.nv_meta import FOLDER, read_mapping
from energy_data.data.shards import some_bytes
from energy_data.errors import SpecError, StructureError

VERSION = 1
ITEM = np.dtype("<u8")
_BLOCK = 512  # numbers that are read together
_CHECKED = 1 << 20  # numbers that are in memory at once


def paths_of(dataset: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of the two files of a filter."""
    if dataset.is_file():
        stem = dataset.with_name(f"{dataset.name}.{name}")
    else:
        stem = dataset / FOLDER / f"filter_{name}"
    return stem.with_name(f"{stem.name}.json"), stem.with_name(f"{stem.name}.idx")


class FilterIndex:
    """The rows of one part of a dataset that a filter keeps.

    Opening it reads the small file. Of the numbers, 4 KiB are read at a time.

    shards, counts: Those of the part, in order, and their rows. all_counts: those of the dataset.
    Raises SpecError if there is no such filter, StructureError if it is not one of this dataset.
    """

    def __init__(
        self,
        dataset: str,
        name: str,
        shards: Sequence[str],
        counts: Sequence[int],
        all_counts: Mapping[str, int],
    ) -> None:
        self.dataset = dataset
        json_path, index_path = paths_of(Path(dataset), name)
        self.path, kept = str(index_path), _read_counts(json_path, all_counts)
        self._version = version_of(self.path)
        total = sum(kept.values())
        size = -1 if self._version is None else self._version.size
        if size != total * ITEM.itemsize:
            found = "it does not exist" if size < 0 else f"it has {size} bytes"
            raise self._damaged(f"{found}, but {json_path.name} has {total} samples of 8 bytes")
        begins = dict(zip(kept, accumulate(kept.values(), initial=0), strict=False))
        firsts = dict(zip(all_counts, accumulate(all_counts.values(), initial=0), strict=False))
        rows = list(accumulate(counts, initial=0))
        # Of each shard of the part: kept samples up to it, its place in the file, its numbers.
        self._ends = np.cumsum([kept[shard] for shard in shards])
        self._places = np.array([begins[shard] for shard in shards])
        self._first = np.array([firsts[shard] for shard in shards])
        self._row = np.array(rows[:-1])
        self._counts = np.array(counts)
        if not len(self):
            problem = f"the filter index {name!r} keeps no sample of this part of the dataset"
            raise SpecError(f"{dataset}: {problem}. Remove it, or give another.")

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def facts(self) -> tuple[object, ...]:
        """What a fingerprint depends on; 33 small reads."""
        return self._ends.tolist(), some_bytes(open_file(self.path))

    def rows(self, kept: Int64s) -> Int64s:
        """Return the rows in the part of kept samples. StructureError for a row of no sample."""
        shard = np.searchsorted(self._ends, kept, side="right")
        before = np.where(shard > 0, self._ends[shard - 1], 0)
        inside = self._read(self._places[shard] + kept - before) - self._first[shard]
        if ((inside < 0) | (inside >= self._counts[shard])).any():
            raise self._damaged("it has a number that is of another shard than its place")
        found: Int64s = inside + self._row[shard]
        return found

    def places(self, rows: Int64s) -> Int64s:
        """Return the numbers among the kept samples of those rows that are kept, in order."""
        shards = np.searchsorted(self._row, rows, side="right") - 1
        found = []
        for row, shard in zip(rows.tolist(), shards.tolist(), strict=True):
            begin = int(self._ends[shard - 1]) if shard else 0
            mine = self._read(self._places[shard] + np.arange(int(self._ends[shard]) - begin))
            number = row - self._row[shard] + self._first[shard]
            at = int(np.searchsorted(mine, number))
            if at < len(mine) and mine[at] == number:
                found.append(begin + at)
        return np.array(sorted(found), np.int64)

    def check(self) -> None:
        """Raise StructureError if the numbers do not fit the shards. Reads all of them."""
        last = -1
        for begin in range(0, len(self), _CHECKED):
            numbers = np.arange(begin, min(begin + _CHECKED, len(self)))
            rows = self.rows(numbers)
            if (np.diff(rows, prepend=last) <= 0).any():
                raise self._damaged("its numbers do not increase")
            last = int(rows[-1])

    def _read(self, places: Int64s) -> Int64s:
        """Return the numbers at some places of the file."""
        file: LocalFile = keep_open(open_file, self.path, self._version)
        numbers = np.empty(len(places), np.int64)
        blocks = places // _BLOCK
        for block in np.unique(blocks).tolist():
            begin, size = block * _BLOCK * ITEM.itemsize, _BLOCK * ITEM.itemsize
            data = file.read(begin, min(size, file.size - begin))
            mine = blocks == block
            numbers[mine] = np.frombuffer(data, ITEM)[places[mine] - block * _BLOCK]
        return numbers

    def _damaged(self, problem: str) -> StructureError:
        problem = f"{self.path}: {problem}. Build the filter index again."
        return StructureError(problem, dataset=self.dataset)


def _read_counts(path: Path, all_counts: Mapping[str, int]) -> dict[str, int]:
    """Return how many samples of each shard of a dataset a filter keeps."""
    content = read_mapping(path)
    if content is None:
        name = path.stem.removeprefix("filter_") if path.parent.name == FOLDER else path.stem
        raise SpecError(
            f"there is no filter index {name!r}: {path} does not exist. Correct the name, or make "
            f"it with `build_filter_index`."
        )
    counts = content.get("filtered_shard_counts")
    problem = ""
    if content.get("version") != VERSION:
        problem = f"its version is {content.get('version')!r}, not {VERSION}"
    elif not isinstance(counts, dict):
        problem = "it has no mapping `filtered_shard_counts`"
    elif other := sorted(counts.keys() ^ all_counts.keys()):
        have = "the dataset does not have" if other[0] in counts else "it lacks"
        problem = f"it is of other shards: {have} {other[0]!r}"
    else:
        for shard, count in counts.items():
            if type(count) is not int or not 0 <= count <= all_counts[shard]:
                problem = f"it keeps {count!r} of the {all_counts[shard]} samples of {shard!r}"
    if problem:
        raise StructureError(f"{path}: {problem}. Build the filter index again.")
    assert isinstance(counts, dict)
    return {shard: counts[shard] for shard in all_counts}
