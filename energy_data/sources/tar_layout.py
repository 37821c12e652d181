"""Where the samples of datasets of tars are: in which shard, from which byte to which."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat
from typing import NamedTuple, Protocol

from energy_data import compiled
from energy_data.core.sample import SampleSource
from energy_data.errors import StructureError
from energy_data.sources.tar_headers import BLOCK
from energy_data.sources.tar_index import KnownShard, Shard, index_beside, known_shard
from energy_data.sources.tar_meta import SplitPart
from energy_data.sources.tar_plain import find_index
from energy_data.sources.tar_samples import Origin, Spans


class Layout(NamedTuple):
    """How the samples of a dataset are laid out. The compiled part takes it as a tuple."""

    dataset: str  # path
    skipped: int  # samples of the shards before the first of the dataset
    length: int  # samples of the dataset
    after: list[int]  # [shards] sample behind the last one of each
    counts: list[int]  # [shards] samples
    shards: list[str]  # [shards] names
    open: Callable[[int], Shard]
    origin: Origin

    @classmethod
    def of(
        cls, path: str, part: SplitPart, subset: tuple[int, int], origin: Origin, *, prepared: bool
    ) -> Layout:
        """Return that of a part of a dataset. subset: the first of its samples, and how many."""
        opener = _Opener(part, prepared=prepared)
        after = list(accumulate(part.counts))
        return cls(path, *subset, after, part.counts, part.shards, opener.open, origin)


class _Opener:
    """Opens the shards of a dataset."""

    def __init__(self, part: SplitPart, *, prepared: bool) -> None:
        self._part, self._prepared = part, prepared
        self._known: dict[int, KnownShard] = {}  # read so far

    def open(self, number: int) -> Shard:
        known = self._known.get(number) or self._know(number)
        known.was_used = True
        return known.shard or known.open()

    def _know(self, number: int) -> KnownShard:
        tar = f"{self._part.root}/{self._part.shards[number]}"
        index = None if self._prepared else find_index(tar)
        known = known_shard(tar, index or index_beside(tar), self._part.counts[number])
        known.drop_changed()  # another source may have read it, before it was written anew
        self._known[number] = known
        return known


class LaidOut(Protocol):
    """A source of samples in tars."""

    @property
    def layout(self) -> Layout:
        """Where they are."""
        ...


def locate(requests: Sequence[tuple[LaidOut, list[int]]]) -> tuple[Spans, list[int]]:
    """Return where samples are, request by request; and of how many bytes those of each.

    Each request: a source and numbers of its samples, in order. Raises IndexError for numbers there
    are not, StructureError for an index that cannot be.
    """
    spans = Spans()
    if compiled.TAR is not None:
        into = spans.files, *spans.columns()
        located: list[int] | None = compiled.TAR.locate(requests, *into, SampleSource)
        if located is not None:
            return spans, located
        spans = Spans()
    return spans, [_add(source.layout, wanted, spans) for source, wanted in requests]


def _add(layout: Layout, wanted: list[int], spans: Spans) -> int:
    """Add where samples are to `spans`, shard by shard; return their bytes.

    Plain Python: numpy pays for many in a shard only.
    """
    dataset, skipped, length, after, counts, shards, open_shard, origin = layout
    if wanted and not 0 <= wanted[0] <= wanted[-1] < length:
        wrong = wanted[0] if wanted[0] < 0 else wanted[-1]
        raise IndexError(f"index {wrong} of {length} samples")
    behind, floor = 0, 0  # sample behind the shard; where the next sample may begin
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
                f"its index has a sample from byte {begin} to {end} of {last}, which cannot be. "
                "Run `energy-data prepare --force`.",
                shard=file.path,
                offset=begin,
            )
        floor = end  # unless it is the same again
        num_bytes += end - begin
        spans.begins.append(begin)
        spans.ends.append(end)
        spans.sources.append((tuple.__new__(SampleSource, (dataset, name, number)),))
    spans.origins.extend(repeat(origin, len(wanted)))
    return num_bytes
