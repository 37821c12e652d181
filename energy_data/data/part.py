"""Datasets of shards: prepared, by Energon or by us, or not at all.

A format of shards is a `ShardKind`, and a source derived from `ShardedSource`. Folders, patterns,
split parts, excluded samples and subsets are then as in all others.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise, repeat
from pathlib import Path
from typing import ClassVar

import numpy as np

from energy_data.core.arrays import Int64s
from energy_data.core.lazy import cached_property
from energy_data.data.files.local import end_ranges, open_file
from energy_data.data.files.offsets import Offsets, bounds_of, ensure_index, num_samples
from energy_data.data.filter_index import FilterIndex
from energy_data.data.indexing import index_shard
from energy_data.data.nv_meta import NvMeta
from energy_data.data.shards import (
    FindRows,
    PartShards,
    Progress,
    Reframe,
    ShardKind,
    named_shards,
    plain_shards,
    shard_opener,
)
from energy_data.data.source import OpenOptions, Source, Unit, reopen
from energy_data.data.text.counts import ShardCounts, counts_of
from energy_data.errors import SpecError, StructureError, shown
from energy_data.remote.cache_space import NEAR, Range, merged
from energy_data.remote.client import whole_ranges
from energy_data.remote.mirror_paths import is_mirrored


class ShardedSource(Source):
    """Samples of one part of a dataset of shards.

    path: a prepared folder; or, unprepared, a folder of shards, a shard, or a pattern with braces
    or stars. Opening reads small files only, but indexes unprepared shards that have no index yet.
    Raises SpecError if the dataset or part does not exist, StructureError for damaged files.
    """

    kind: ClassVar[ShardKind]

    def __init__(self, path: str, options: OpenOptions) -> None:
        self._place, self.options = path, options
        self.path = shown(path)  # in samples and errors
        self.part = part = part_of(path, options, self.kind)
        self._first, self._length = options.range_of(part.num_samples, path)
        first, end = self._first, self._first + self._length
        self._row = part.row_of(first)
        self._first_place = first + bisect_right(part.gaps, first)  # among what a filter keeps
        self._gaps = [gap - first for gap in part.gaps if first < gap < end]
        self._ends = list(accumulate(part.counts))  # [shards] the row after the last one of each
        self._open = shard_opener(part)
        self._asked = set[int]()  # shards whose indices were asked for

    def __len__(self) -> int:
        return self._length

    @property
    def is_filtered(self) -> bool:
        """Whether it has only the samples that a filter index keeps."""
        return self.part.kept is not None

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits that do not depend on the path, and change with the data."""
        with names_dataset(self.path):
            return self.part.fingerprint(self._row, self._length, self._gaps)

    def fingerprint_ranges(self) -> Sequence[Range]:
        """Return what `fingerprint` reads of shards."""
        with names_dataset(self.path):
            return self.part.probes()

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return reopen, (type(self), self._place, self.options, self.fingerprint)

    @property
    def warning(self) -> str | None:
        """Which names split.yaml excludes that do not exist."""
        if not (unknown := self.part.unknown):
            return None
        count, first, suffix = len(unknown), unknown[0], self.kind.suffix
        found = f"{count} names that do not exist, {first!r} first"
        found = found if count > 1 else f"{first!r}, which does not exist"
        return (
            f"{self.path}: split.yaml excludes {found}. Correct it: `shard{suffix}` or "
            f"`shard{suffix}/key`."
        )

    @property
    def is_remote(self) -> bool:
        """Whether its shards are in a cache of an object store."""
        return is_mirrored(self._place)

    def ranges(self, first: int, count: int) -> Sequence[Range] | None:
        """Return the bytes of samples in their shards; None for shards without an index."""
        found: list[Range] = []
        with names_dataset(self.path):
            for number, _, rows in self._by_shard(np.arange(first, first + count)):
                bytes_of = self._ranges(number, rows)
                if bytes_of is None:
                    return None
                found += merged(bytes_of, NEAR)
        return found

    def index_ranges(self, indices: Sequence[int]) -> Sequence[Range]:
        """Return the indices of the shards of some samples, and what these are opened by; once."""
        if self.part.kind.open_block is None:
            return []
        used = {number for number, _, _ in self._by_shard(np.array(indices, np.int64))}
        if not (new := sorted(used - self._asked)):
            return []
        self._asked |= used
        shards, found = zip(*map(self.part.paths, new), strict=True)
        ends = end_ranges(shards) if self.part.kind.reads_end else []
        return [*whole_ranges(dict.fromkeys(found)), *ends]

    def _ranges(self, number: int, rows: Int64s) -> Iterable[Range] | None:
        """Return the bytes of samples of a shard; `rows` is sorted."""
        if self.part.kind.open_block is None:
            return None
        begins, ends = self._bounds(number, rows)
        return zip(repeat(self.part.paths(number)[0]), begins.tolist(), ends.tolist())

    def check_files(self) -> None:
        """Raise StructureError if a shard does not fit its index, or the filter. Opens all shards.

        Raises SpecError if samples or shards are excluded that do not exist.
        """
        if self.warning:
            raise SpecError(self.warning)
        with names_dataset(self.path):
            for number, count in enumerate(self.part.counts):
                if count:
                    self._check_shard(number)
            if self.part.kept is not None:
                self.part.kept.check()

    def _check_shard(self, number: int) -> None:
        """Raise StructureError if a shard does not fit its index."""
        self._open(number)

    def rows_of(self, indices: Sequence[int]) -> list[int]:
        """Return the rows of samples in their part."""
        return [row + self._row for row in self._rows(list(indices))]

    def find(self, name: str) -> int | None:
        """Return the index of the sample that is called `SHARD/KEY`, or KEY; None: there is none.

        Where samples have no keys of their own, KEY is the number of the sample in its shard. The
        first shard that has the key counts; without SHARD, keys of all shards before it are read.
        """
        part = self.part
        find_rows = part.kind.key_finder(part) if part.kind.key_finder else _numbered(part)
        with names_dataset(self.path):
            for number, key in self._places_of(name):
                (row,) = find_rows(number, [key])
                if row is None:
                    continue
                row += self._ends[number] - part.counts[number]
                rows = range(self._length)
                index = bisect_left(rows, row, key=lambda one: self.rows_of([one])[0])
                if index < self._length and self.rows_of([index]) == [row]:  # else it is left out
                    return index
        return None

    def _places_of(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield the shards that may have a sample of some name, with its key there."""
        for number, shard in enumerate(self.part.shards):
            if name.startswith(f"{shard}/"):
                yield number, name[len(shard) + 1 :]
        yield from ((number, name) for number in range(len(self.part.shards)))

    def costs(self, indices: Int64s, unit: Unit) -> Int64s | None:
        """Return the bytes of each sample in its shard, or its tokens; None if no index has them.

        `energy-data prepare-tokens` counts tokens.
        """
        found = np.empty(len(indices), np.int64)
        with names_dataset(self.path):
            counts = self._token_counts if unit == "tokens" else None
            if counts is None and (unit == "tokens" or self.part.kind.open_block is None):
                return None
            for number, places, rows in self._by_shard(np.asarray(indices, np.int64)):
                of_shard = counts and counts[number]
                found[places] = of_shard.read(rows) if of_shard else self._bytes(number, rows)
        return found

    def total_cost(self, unit: Unit) -> int | None:
        """Return the sum of the costs; that of all tokens of a part is known at once."""
        if unit == "tokens" and self._length == sum(self.part.counts):
            with names_dataset(self.path):
                counts = self._token_counts
            return None if counts is None else sum(one.total for one in counts if one)
        return super().total_cost(unit)

    @cached_property
    def _token_counts(self) -> Sequence[ShardCounts | None] | None:
        return counts_of(self.part)

    def _bytes(self, number: int, rows: Int64s) -> Int64s:
        """Return the bytes of samples of a shard; `rows` is sorted."""
        begins, ends = self._bounds(number, rows)
        found = (ends - begins).astype(np.int64)
        if (found <= 0).any():
            problem = f"its index has a sample of {found.min()} bytes"
            path, _ = self.part.paths(number)
            raise StructureError(f"{problem}. Run `energy-data prepare --force`.", shard=path)
        return found

    def _bounds(self, number: int, rows: Int64s) -> tuple[Offsets, Offsets]:
        """Return the offsets of samples of a shard, and those after them; `rows` is sorted."""
        return bounds_of(partial(self._open, number), rows)[1:]

    def _by_shard(self, indices: Int64s) -> Iterator[tuple[int, Int64s, Int64s]]:
        """Yield each shard with the places in `indices` that are in it, and their rows, sorted."""
        order = indices.argsort(kind="stable")
        if len(indices) and not 0 <= indices[order[0]] <= indices[order[-1]] < self._length:
            raise IndexError(f"one of {indices.tolist()} of {self._length} samples")
        rows = np.asarray(self._rows(indices[order].tolist()), np.int64) + self._row
        numbers = np.searchsorted(self._ends, rows, side="right")
        cuts = np.flatnonzero(np.diff(numbers)) + 1
        for first, end in pairwise([0, *cuts.tolist(), len(rows)] if len(rows) else []):
            number = int(numbers[first])
            before = self._ends[number] - self.part.counts[number]
            yield number, order[first:end], rows[first:end] - before

    def _rows(self, indices: list[int]) -> list[int]:
        """Return the row of each sample, from that of the first one on."""
        if self._gaps:
            indices = [one + bisect_right(self._gaps, one) for one in indices]
        if self.part.kept is None:
            return indices
        with names_dataset(self.path):
            rows = self.part.kept.rows(np.array(indices, np.int64) + self._first_place)
        found: list[int] = (rows - self._row).tolist()
        return found


@contextmanager
def names_dataset(path: str) -> Iterator[None]:
    """Add the path of the dataset to a StructureError of the block."""
    try:
        yield
    except StructureError as error:
        error.dataset = path
        raise


def prepared_at(path: str) -> NvMeta | None:
    """Return what was prepared of a dataset; None if it is not prepared."""
    try:
        return NvMeta.of(Path(path)) if Path(path).is_dir() else None
    except OSError as error:
        problem = f"it cannot be opened: {error.strerror}"
        raise SpecError(f"{path}: {problem}. Check the path and its permissions.") from error


def part_of(path: str, options: OpenOptions, kind: ShardKind) -> PartShards:
    """Return the part of a dataset that `options` name, without what its split.yaml excludes."""
    prepared = prepared_at(path)
    if prepared is None:
        options.check_unprepared(path)
        part = find_plain(path, kind)
        every = dict(zip(part.shards, part.counts, strict=True))
    else:
        part = prepared.part(kind, options.split_part, options.split_config)
        every = prepared.counts
    if options.filter is None:
        return _without_excluded(part, None)
    kept = FilterIndex(path, options.filter, part.shards, part.counts, every)
    return _without_excluded(replace(part, kept=kept), kept)


def find_plain(path: str, kind: ShardKind) -> PartShards:
    """Return the shards that `path` stands for as one part; index those that have no index.

    Raises SpecError if there are none or no samples in them, StructureError for a damaged shard.
    """
    root, shards, known = plain_shards(path, kind)
    paths: Iterable[str] = [f"{root}/{shard}" for shard in shards]
    if len(shards) > 1 and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        paths = track(paths, "Indexing shards", console=Console(stderr=True), transient=True)
    indices = None
    if (fits := kind.fits) is None:
        scans = [
            known.get(shard) or kind.scan(open_file(one))
            for shard, one in zip(shards, paths, strict=True)
        ]
        counts = [scan.num_samples for scan in scans]
    else:
        indices = [ensure_index(one, fits, lambda file: kind.scan(file).offsets) for one in paths]
        counts = [num_samples(index) for index in indices]
    if not sum(counts):
        raise _no_samples(path, len(shards), kind)
    return PartShards(kind, root, shards, counts, indices=indices)


def index_files(
    path: str, kind: ShardKind, reframe: Reframe | None = None, progress: Progress | None = None
) -> int:
    """Write the index next to each file that `path` stands for; return the number of samples.

    reframe: as in `index_shard`.
    """
    files = named_shards(path, kind)
    count = sum(index_shard(file, kind.scan, reframe, progress).num_samples for file in files)
    if not count:
        raise _no_samples(path, len(files), kind)
    return count


def _no_samples(path: str, count: int, kind: ShardKind) -> SpecError:
    found = f"{count} {kind.suffix} file{'' if count == 1 else 's'}"
    return SpecError(f"{path}: there are no samples in {found}. Name others.")


def _without_excluded(part: PartShards, kept: FilterIndex | None) -> PartShards:
    """Return a part with the `gaps` of its excluded samples.

    Keys that do not exist are added to `unknown`. In tars it costs a query per excluded sample;
    without index.sqlite, all headers of the shards that have some. Raises SpecError if no sample is
    left, StructureError for a damaged shard or index.
    """
    if not part.excluded:
        return part
    rows, unknown = set[int](), list(part.unknown)
    begins = [0, *accumulate(part.counts)]
    find_rows = part.kind.key_finder(part) if part.kind.key_finder else _numbered(part)
    for number, shard in enumerate(part.shards):
        excluded = part.excluded.get(shard, ())
        for key, row in zip(excluded, find_rows(number, excluded), strict=True):
            if row is None:
                unknown.append(f"{shard}/{key}")
            else:
                rows.add(begins[number] + row)
    places = sorted(rows)
    if kept is not None:
        places = kept.places(np.array(places, np.int64)).tolist()
    if len(places) == part.num_samples:
        raise SpecError(f"{part.root}: all samples of its part are excluded. Correct split.yaml.")
    gaps = [place - before for before, place in enumerate(places)]
    return replace(part, gaps=gaps, unknown=unknown)


def _numbered(part: PartShards) -> FindRows:
    """Return what finds samples whose keys are their rows."""
    return lambda number, keys: [row_of_key(key, part.counts[number]) for key in keys]


def row_of_key(key: str, count: int) -> int | None:
    """Return the row whose number is a key, of `count` in a shard; None: there is none."""
    row = int(key) if key.isdecimal() and len(key) < 20 else count
    return row if row < count and str(row) == key else None
