"""Datasets of tars: prepared by Energon or by us, or not at all.

source = open_dataset("/data/coco", split_part="val")
source.read(np.arange(256))  # -> [{"__key__": "0001", "jpg": tensor, "txt": "..."}, ...]
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping
from functools import partial
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from energy_data.errors import SampleError, SpecError, StructureError
from energy_data.sample import Sample, SampleSource
from energy_data.source import Source
from energy_data.sources.decode import Decoder, Decoding
from energy_data.sources.tar_alone import Decoders, Place, read_plain
from energy_data.sources.tar_headers import BLOCK
from energy_data.sources.tar_index import drop_changed_shard, index_beside, open_shard
from energy_data.sources.tar_meta import SplitPart, is_prepared, read_split_part
from energy_data.sources.tar_plain import find_index, find_plain
from energy_data.sources.tar_samples import SampleReader, Spans
from energy_data.storage.files import File

Int64s = npt.NDArray[np.int64]

_FEW = 32  # samples below which numpy does not pay
_HINT_GAP = 65536  # bytes between samples that read-ahead does not skip


class ExcludedError(SampleError):
    """A sample that `exclude` in split.yaml leaves out; not bad, but not to be had."""


def open_dataset(
    path: str | Path,
    *,
    split_part: str = "train",
    subset: tuple[int, int | None] | None = None,
    subflavors: Mapping[str, Any] | None = None,
    decode: Literal["auto", "bytes"] = "auto",
    decoders: Mapping[str, Decoder | Literal["bytes"]] | None = None,
) -> WebdatasetSource:
    """Return the samples of one part of a dataset; reads its small files only.

    Args:
        path: A prepared folder; or, unprepared, a folder of tars, a tar, or `shard-{000..099}.tar`,
            which are indexed now if they never were.
        split_part: The part to read. Unprepared tars have one part, "train".
        subset: Samples [start, end) of the part; end None means to its end.
        subflavors: The `__subflavors__` of every sample; one dict that all of them share.
        decode: "auto" decodes by extension; "bytes" decodes nothing.
        decoders: Extension (`png`, or more exactly `seg.png`) -> function of the part's bytes, or
            "bytes"; goes before `decode`.

    Raises SpecError for what does not exist, StructureError for damaged files.
    """
    return WebdatasetSource(
        str(path),
        split_part=split_part,
        subset=subset,
        subflavors=dict(subflavors or {}),
        decoding=Decoding(decode, dict(decoders or {})),
    )


class WebdatasetSource(Source):
    """Samples of one part of a dataset of tars; made by `open_dataset`."""

    def __init__(
        self,
        path: str,
        *,
        split_part: str,
        subset: tuple[int, int | None] | None,
        subflavors: dict[str, Any],
        decoding: Decoding,
    ) -> None:
        self.path, self.split_part, self.subset = path, split_part, subset
        self.subflavors, self.decoding = subflavors, decoding
        self.prepared = is_prepared(Path(path))
        part = (
            read_split_part(Path(path), split_part) if self.prepared else _plain(path, split_part)
        )
        self.shards = part.shards
        self._excluded = part.excluded
        self._root = part.root
        self._counts = part.counts
        self._ends = np.cumsum(part.counts, dtype=np.int64)
        self._end_list = self._ends.tolist()
        self._begins = self._ends - np.asarray(part.counts, np.int64)
        self._first, self._length = _range(subset, int(self._ends[-1]), path)
        self._fingerprint = _fingerprint(part, split_part, self._first, self._length)
        self._decoders = Decoders(decoding)
        self._places: dict[int, tuple[str, str, int]] = {}  # of the shards read so far

    def __len__(self) -> int:
        return self._length

    @property
    def fingerprint(self) -> str:
        """Return 16 hex digits: the same wherever the dataset is kept, another if it changes."""
        return self._fingerprint

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        facts = (self.path, self.split_part, self.subset, self.subflavors, self.decoding)
        return _reopen, (*facts, self._fingerprint)

    def read(self, indices: Int64s) -> list[Sample | SampleError]:
        """Return the samples of `indices`, in that order; a bad sample is a SampleError."""
        wanted = np.asarray(indices, np.int64)
        try:
            if len(wanted) < _FEW:
                samples = [self._read_one(index) for index in wanted.tolist()]
            else:
                samples = self._read_block(wanted)
        except StructureError as error:
            error.dataset = self.path
            raise
        return [self._admit(sample) for sample in samples] if self._excluded else samples

    def hint(self, indices: Int64s) -> None:
        """Start read-ahead for `indices`. What is wrong with them is left for `read` to say."""
        wanted = np.sort(np.asarray(indices, np.int64))
        if not wanted.size:
            return
        try:
            spans = self._spans(wanted)
        except StructureError:
            return
        for file, (first, end) in zip(
            spans.files, pairwise([*spans.file_rows.tolist(), len(wanted)]), strict=True
        ):
            begins, ends = spans.begins[first:end], spans.ends[first:end]
            gaps = (begins[1:] > ends[:-1] + _HINT_GAP).nonzero()[0]
            firsts, lasts = np.append(0, gaps + 1), np.append(gaps, end - first - 1)
            for begin, stop in zip(begins[firsts].tolist(), ends[lasts].tolist(), strict=True):
                file.will_need(begin, stop - begin)

    def _read_one(self, index: int) -> Sample | SampleError:
        if not 0 <= index < self._length:
            raise IndexError(f"index {index} of {self._length} samples")
        at = index + self._first
        shard = bisect_right(self._end_list, at)
        number = at - (self._end_list[shard - 1] if shard else 0)
        file, places, _ = open_shard(self._places.get(shard) or self._place(shard))
        offsets = places.data
        begin, end, last = offsets[number], offsets[number + 1], offsets[-1]
        if not begin < end <= last or (begin | end) % BLOCK:
            raise _impossible(file.path, begin, end, last)
        source = _SOURCE((self.path, self.shards[shard], number))
        return read_plain(Place(file, begin, end, (source,)), self._decoders, self.subflavors)

    def _read_block(self, wanted: Int64s) -> list[Sample | SampleError]:
        order = wanted.argsort(kind="stable")
        spans = self._spans(wanted[order])
        found = SampleReader(spans, self._decoders, self.subflavors).read()
        samples: list[Sample | SampleError] = [None] * len(found)  # type: ignore[list-item]
        for place, sample in zip(order.tolist(), found, strict=True):
            samples[place] = sample
        return samples

    def _spans(self, wanted: Int64s) -> Spans:
        """Return where samples are; wanted: int64 [n], sorted."""
        if wanted[0] < 0 or wanted[-1] >= self._length:
            raise IndexError(f"indices {wanted[0]} to {wanted[-1]} of {self._length} samples")
        at = wanted + self._first
        shards = self._ends.searchsorted(at, side="right")
        numbers = at - self._begins[shards]
        firsts = np.append(0, (shards[1:] != shards[:-1]).nonzero()[0] + 1)
        begins, ends = np.empty_like(at), np.empty_like(at)
        files: list[File] = []
        sources: list[tuple[SampleSource]] = []
        for first, end in pairwise([*firsts.tolist(), len(at)]):
            shard, rows = int(shards[first]), numbers[first:end]
            file, offsets, _ = open_shard(self._places.get(shard) or self._place(shard))
            begins[first:end], ends[first:end] = offsets[rows], offsets[rows + 1]
            _check(begins[first:end], ends[first:end], file.path, int(offsets[-1]))
            files.append(file)
            names = zip(repeat(self.path), repeat(self.shards[shard]), rows.tolist())
            sources += zip(map(_SOURCE, names))
        return Spans(files, firsts, begins, ends, sources)

    def _place(self, shard: int) -> tuple[str, str, int]:
        """Return the path of a shard, that of its index, and how many samples it has."""
        tar = f"{self._root}/{self.shards[shard]}"
        index = None if self.prepared else find_index(tar)
        place = tar, index or index_beside(tar), self._counts[shard]
        drop_changed_shard(place)  # another source may have read it, before it was written anew
        self._places[shard] = place
        return place

    def _admit(self, sample: Sample | SampleError) -> Sample | SampleError:
        if isinstance(sample, SampleError):
            return sample
        source: SampleSource = sample["__sources__"][0]
        if f"{source.shard}/{sample['__key__']}" not in self._excluded:
            return sample
        return ExcludedError(
            "left out by `exclude` in split.yaml.",
            dataset=source.dataset,
            shard=source.shard,
            key=sample["__key__"],
            index=source.index,
        )


_SOURCE = partial(tuple.__new__, SampleSource)  # half the time of SampleSource(*fields)


def _plain(path: str, split_part: str) -> SplitPart:
    if split_part != "train":
        raise SpecError(
            f"{path}: it is not prepared, so its one split part is 'train', not {split_part!r}. "
            "Name that, or run `energy-data prepare` to split it."
        )
    return find_plain(path)


def _range(subset: tuple[int, int | None] | None, total: int, path: str) -> tuple[int, int]:
    """Return the first sample of a subset, and how many there are."""
    start, end = subset or (0, None)
    end = total if end is None else end
    if not 0 <= start < end <= total:
        raise SpecError(
            f"{path}: subset [{start}, {end}) is empty or reaches beyond its {total} samples. "
            f"Give 0 <= start < end <= {total}."
        )
    return start, end - start


def _check(begins: Int64s, ends: Int64s, tar: str, last: int) -> None:
    """Raise StructureError if an index gives places that cannot be."""
    wrong = (begins < 0) | (begins >= ends) | (ends > last) | ((begins | ends) % BLOCK != 0)
    wrong[1:] |= (begins[1:] < ends[:-1]) & (begins[1:] != begins[:-1])
    if wrong.any():
        row = int(wrong.argmax())
        raise _impossible(tar, int(begins[row]), int(ends[row]), last)


def _impossible(tar: str, begin: int, end: int, last: int) -> StructureError:
    return StructureError(
        f"its index has a sample from byte {begin} to {end} of {last}, which cannot be. "
        "Run `energy-data prepare --force`.",
        shard=tar,
        offset=begin,
    )


def _fingerprint(part: SplitPart, split_part: str, first: int, length: int) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for fact in (part.uuid, split_part, first, length, part.shards, part.counts):
        digest.update(repr(fact).encode("utf-8", "surrogateescape") + b"\n")
    digest.update(repr(sorted(part.excluded)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _reopen(
    path: str,
    split_part: str,
    subset: tuple[int, int | None] | None,
    subflavors: dict[str, Any],
    decoding: Decoding,
    fingerprint: str,
) -> WebdatasetSource:
    """Return a pickled source, if the dataset is still the one it was."""
    source = WebdatasetSource(
        path, split_part=split_part, subset=subset, subflavors=subflavors, decoding=decoding
    )
    if source.fingerprint != fingerprint:
        raise StructureError(
            "it was changed while it was in use. Start the run again.", dataset=path
        )
    return source
