"""Where samples of datasets of tars are: in which shard, from which byte to which."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise, repeat, starmap
from typing import Any, NamedTuple

from energy_data.core.sample import SampleSource
from energy_data.data.decode.parts import Decoders
from energy_data.data.files.local import LocalFile
from energy_data.data.tar import native
from energy_data.data.tar.header import BLOCK
from energy_data.data.tar.index import KnownShard, Shard, find_index, index_beside, known_shard
from energy_data.data.tar.nv_meta import PartShards
from energy_data.errors import StructureError


class Origin(NamedTuple):
    """What the samples of one dataset have in common."""

    decoders: Decoders
    subflavors: dict[str, Any]


class SampleSpan(NamedTuple):
    """The bytes of one sample."""

    file: LocalFile
    begin: int  # offset of its first header
    end: int  # offset after its last part
    sources: tuple[SampleSource]


class Spans:
    """The bytes of the samples of a block, file by file, in order of offset."""

    def __init__(self) -> None:
        self.files: list[LocalFile] = []
        self.fds: list[int] = []  # [files] descriptors
        self.file_rows: list[int] = []  # [files] first row of each
        self.begins: list[int] = []  # [rows] offset of the sample's first header
        self.ends: list[int] = []  # [rows] offset after the sample
        self.sources: list[tuple[SampleSource]] = []  # [rows]
        self.origins: list[Origin] = []  # [rows]

    def columns(self) -> tuple[list[int], list[int], list[int], list[int], list[Any], list[Any]]:
        """Return all columns in the order of the C functions: descriptors instead of files."""
        return self.fds, self.file_rows, self.begins, self.ends, self.sources, self.origins

    def runs(self) -> Iterator[tuple[LocalFile, slice]]:
        """Yield each file with its rows."""
        bounds = pairwise([*self.file_rows, len(self.begins)])
        return zip(self.files, starmap(slice, bounds), strict=True)

    def row(self, row: int) -> SampleSpan:
        """Return the span of one row."""
        file = self.files[bisect_right(self.file_rows, row) - 1]
        return SampleSpan(file, self.begins[row], self.ends[row], self.sources[row])


class Layout(NamedTuple):
    """How the samples of a dataset are laid out. The C part reads it as a plain tuple."""

    dataset: str  # path
    skipped: int  # samples of the part before the first one of the subset
    length: int  # samples of the subset
    after: list[int]  # [shards] number of the sample after the last one of each
    counts: list[int]  # [shards] samples
    shards: list[str]  # [shards] names
    open: Callable[[int], Shard]
    origin: Origin

    @classmethod
    def of(
        cls, path: str, part: PartShards, subset: tuple[int, int], origin: Origin, *, prepared: bool
    ) -> Layout:
        """Return the layout of a part. subset: number of its first sample, and of samples."""
        opener = _shard_opener(part, prepared=prepared)
        after = list(accumulate(part.counts))
        return cls(path, *subset, after, part.counts, part.shards, opener, origin)


def _shard_opener(part: PartShards, *, prepared: bool) -> Callable[[int], Shard]:
    """Return a function that opens a shard of the part by its number."""
    known: dict[int, KnownShard] = {}

    def open_shard(number: int) -> Shard:
        found = known.get(number)
        if found is None:
            tar = f"{part.root}/{part.shards[number]}"
            index = None if prepared else find_index(tar)
            found = known_shard(tar, index or index_beside(tar), part.counts[number])
            found.drop_changed()  # another source may have read it before it was rewritten
            known[number] = found
        found.was_used = True
        return found.shard or found.open()

    return open_shard


def locate(requests: Sequence[tuple[Layout, list[int]]]) -> tuple[Spans, list[int]]:
    """Return the spans of samples, request by request, and the number of bytes of each request.

    Each request: a layout and sorted sample numbers. Raises IndexError for a number that is out of
    range, StructureError for an invalid index.
    """
    spans = Spans()
    if native.TAR is not None:
        into = spans.files, *spans.columns()
        located: list[int] | None = native.TAR.locate(requests, *into, SampleSource)
        if located is not None:
            return spans, located
        spans = Spans()  # the Python code raises the error
    return spans, [_add(layout, wanted, spans) for layout, wanted in requests]


def _add(layout: Layout, wanted: list[int], spans: Spans) -> int:
    """Add samples of one dataset to `spans`, shard by shard; return the number of their bytes."""
    dataset, skipped, length, after, counts, shards, open_shard, origin = layout
    if wanted and not 0 <= wanted[0] <= wanted[-1] < length:
        wrong = wanted[0] if wanted[0] < 0 else wanted[-1]
        raise IndexError(f"index {wrong} of {length} samples")
    behind, floor = 0, 0  # sample after the shard; where the next sample may begin
    num_bytes = 0
    for index in wanted:
        at = index + skipped
        if at >= behind:
            shard = bisect_right(after, at)
            behind, name = after[shard], shards[shard]
            first, floor = behind - counts[shard], 0
            file, table, _, fd = open_shard(shard)
            offsets = table.data
            last = offsets[-1]
            spans.files.append(file)
            spans.fds.append(fd)
            spans.file_rows.append(len(spans.begins))
        number = at - first
        begin, end = offsets[number], offsets[number + 1]
        if not begin < end <= last or (begin | end) % BLOCK or begin < floor != end:
            raise StructureError(
                f"its index has a sample from byte {begin} to {end} of {last}, which is invalid. "
                "Run `energy-data prepare --force`.",
                shard=file.path,
                offset=begin,
            )
        floor = end  # unless the same sample is requested again
        num_bytes += end - begin
        spans.begins.append(begin)
        spans.ends.append(end)
        spans.sources.append((SampleSource(dataset, name, number),))
    spans.origins.extend(repeat(origin, len(wanted)))
    return num_bytes
