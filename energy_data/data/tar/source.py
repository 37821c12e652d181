"""Datasets of tars: prepared by Energon or by us, or not at all.

source = open_source("/data/coco", split_part="val")
source.read(np.arange(256))  # -> [{"__key__": "0001", "jpg": tensor, "txt": "..."}, ...]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from energy_data.core.batch_memory import new_rows
from energy_data.core.lazy import cached_property
from energy_data.core.sample import Sample
from energy_data.data.decode.parts import Decoders, RawTensor
from energy_data.data.nv_meta import NvMeta
from energy_data.data.shards import PartShards
from energy_data.data.source import OpenOptions, Source, reopen
from energy_data.data.tar import native
from energy_data.data.tar.header import BLOCK
from energy_data.data.tar.index import find_plain, shard_opener
from energy_data.data.tar.reader import (
    LARGEST_PLAIN,
    Layout,
    Origin,
    Spans,
    locate,
    read_into_rows,
    read_samples,
)
from energy_data.data.tar.sample_keys import without_excluded
from energy_data.errors import SampleError, SpecError, StructureError

Int64s = npt.NDArray[np.int64]


class WebdatasetSource(Source):
    """Samples of one part of a dataset of tars.

    path: a prepared folder; or, unprepared, a folder of tars, a tar, or `shard-{000..099}.tar`.
    Opening reads small files only, but indexes unprepared tars that have no index yet. Raises
    SpecError if the dataset or part does not exist, StructureError for damaged files.
    """

    def __init__(self, path: str, options: OpenOptions) -> None:
        self.path, self.options = path, options
        self.part = part = _part_of(path, options)
        self._first, self._length = options.range_of(part.num_samples, path)
        first, end = self._first, self._first + self._length
        row, last = part.row_of(first), part.row_of(end - 1)
        self._gaps = [gap - first for gap in part.gaps if first < gap < end]
        self.layout = Layout(
            path,
            row,
            last + 1 - row,
            list(accumulate(part.counts)),
            part.counts,
            part.shards,
            shard_opener(part),
            Origin(Decoders(options.decoding), options.subflavors),
        )
        self.tensor = _raw_tensor(options.decoding.overrides)
        self.bytes_read: int = 0  # headers and padding of the tar included

    def __len__(self) -> int:
        return self._length

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits that do not depend on the path, and change with the data."""
        try:
            return self.part.fingerprint(self.layout.skipped, self._length, self._gaps)
        except StructureError as error:
            error.dataset = self.path
            raise

    def check_files(self) -> None:
        """Raise StructureError if a shard does not fit its index. Opens all shards.

        Raises SpecError if samples or shards are excluded that do not exist.
        """
        if unknown := self.part.unknown:
            raise SpecError(
                f"{self.path}: split.yaml excludes {len(unknown)} names that do not exist, "
                f"{unknown[0]!r} first. Correct them: `shard.tar` or `shard.tar/key`."
            )
        try:
            for number, count in enumerate(self.part.counts):
                if count:
                    self.layout.open(number)
        except StructureError as error:
            error.dataset = self.path
            raise

    @property
    def can_read_rows(self) -> bool:
        """Whether samples have a raw tensor, and no code of the user sees it before its batch."""
        return self.tensor is not None and type(self) is WebdatasetSource

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return reopen, (type(self), self.path, self.options, self.fingerprint)

    def row_of(self, index: int) -> int:
        """Return the row of a sample in its part."""
        return self.part.row_of(index + self._first)

    def _rows(self, indices: list[int]) -> list[int]:
        """Return the row of each sample, from that of the first one on."""
        return [one + bisect_right(self._gaps, one) for one in indices]

    def read(self, indices: Int64s) -> list[Sample | SampleError]:
        """Return the samples of `indices`, in that order; a bad sample is a SampleError."""
        wanted = np.asarray(indices, np.int64)
        return WebdatasetSource.read_together([self], np.zeros_like(wanted), wanted)

    @classmethod
    def read_together(
        cls, sources: Sequence[Self], numbers: Int64s, indices: Int64s, *, rows: bool = False
    ) -> list[Sample | SampleError]:
        """Return sample `indices[n]` of `sources[numbers[n]]` for each n, all read as one block.

        rows: raw tensors may be rows of one tensor.
        """
        if not len(indices):
            return []
        order = np.lexsort((indices, numbers))
        numbers, wanted = numbers[order], indices[order].tolist()
        changes = (numbers[1:] != numbers[:-1]).nonzero()[0] + 1
        bounds = [0, *changes.tolist(), len(wanted)]
        runs = zip(numbers[bounds[:-1]].tolist(), bounds[:-1], bounds[1:], strict=True)
        requests = [
            (source := sources[number], source._rows(rows) if source._gaps else rows)
            for number, first, end in runs
            for rows in (wanted[first:end],)
        ]
        places = order.tolist()
        return _in_order(places, _read(requests, places if rows else None))


Requests = list[tuple[WebdatasetSource, list[int]]]


def _read(requests: Requests, order: list[int] | None = None) -> list[Sample | SampleError]:
    """Return the samples of sorted indices, request by request.

    order: position of each sample in the caller's request if tensors may be rows in that order.
    """
    try:
        spans, located = locate([(source.layout, wanted) for source, wanted in requests])
        for (source, _), num_bytes in zip(requests, located, strict=True):
            source.bytes_read += num_bytes
        num_bytes = sum(located)
        found = None if order is None else _read_rows(requests, spans, order, num_bytes)
        return read_samples(spans) if found is None else found
    except StructureError as error:
        if len(requests) > 1:  # one of them fails alone too, and names its dataset
            return [sample for request in requests for sample in _read([request])]
        error.dataset = requests[0][0].path
        raise


def _read_rows(
    requests: Requests, spans: Spans, order: list[int], num_bytes: int
) -> list[Sample | SampleError] | None:
    """Return the samples with their tensors in rows; None if `read_samples` is better."""
    tensor, count = requests[0][0].tensor, len(spans.ends)
    if tensor is None or any(source.tensor != tensor for source, _ in requests):
        return None
    if tensor.num_bytes * count > 2 * num_bytes:  # before memory is allocated for it
        return None
    exact = BLOCK + tensor.num_bytes + -tensor.num_bytes % BLOCK
    only = sum(end - begin == exact for begin, end in zip(spans.begins, spans.ends, strict=True))
    if 2 * only < count and num_bytes <= count * LARGEST_PLAIN:
        return None
    rows = new_rows(count, tensor.shape, tensor.dtype)
    return None if rows is None else read_into_rows(spans, order, rows, tensor)


def _raw_tensor(overrides: Mapping[str, Any]) -> RawTensor | None:
    """Return the raw tensor that parts are decoded as; None if there is none, or several kinds."""
    tensors = [one for one in overrides.values() if type(one) is RawTensor]
    return tensors[0] if len(tensors) == 1 else None


def _in_order(order: list[int], found: list[Sample | SampleError]) -> list[Sample | SampleError]:
    """Return a list with `found[n]` at position `order[n]`."""
    if native.TAR is not None:
        in_order: list[Sample | SampleError] = native.TAR.in_order(order, found)
        return in_order
    samples: list[Sample | SampleError] = [{}] * len(order)
    for place, sample in zip(order, found, strict=True):
        samples[place] = sample
    return samples


def _part_of(path: str, options: OpenOptions) -> PartShards:
    try:
        prepared = NvMeta.of(Path(path)) if Path(path).is_dir() else None
    except OSError as error:
        problem = f"it cannot be opened: {error.strerror}"
        raise SpecError(f"{path}: {problem}. Check the path and its permissions.") from error
    if prepared is not None:
        return without_excluded(prepared.part(options.split_part, options.split_config))
    options.check_unprepared(path)
    return find_plain(path)
