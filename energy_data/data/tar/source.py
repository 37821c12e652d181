"""Datasets of tars: prepared by Energon or by us, or not at all.

source = open_source("/data/coco", split_part="val")
source.read(np.arange(256))  # -> [{"__key__": "0001", "jpg": tensor, "txt": "..."}, ...]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from energy_data.core.arrays import Int64s
from energy_data.core.batch_memory import new_rows
from energy_data.core.sample import Sample
from energy_data.data.decode.parts import Decoders
from energy_data.data.decode.raw_tensor import RawTensor
from energy_data.data.part import ShardedSource
from energy_data.data.shards import ShardKind
from energy_data.data.source import OpenOptions
from energy_data.data.tar import native
from energy_data.data.tar.header import BLOCK
from energy_data.data.tar.index import fits, open_block, scan
from energy_data.data.tar.reader import (
    LARGEST_PLAIN,
    Layout,
    Origin,
    Spans,
    locate,
    read_into_rows,
    read_samples,
)
from energy_data.data.tar.sample_keys import SampleKeys
from energy_data.errors import SampleError, StructureError
from energy_data.remote.client import held

TARS = ShardKind(
    suffix=".tar",
    packed=(".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst"),
    scan=scan,
    fits=fits,
    open_block=open_block,
    reads_end=True,
    scan_parts=partial(scan, with_parts=True),
    key_finder=lambda part: SampleKeys(part).rows,
)


class WebdatasetSource(ShardedSource):
    """Samples of one part of a dataset of tars."""

    kind = TARS

    def __init__(self, path: str, options: OpenOptions) -> None:
        super().__init__(path, options)
        part = self.part
        self.layout = Layout(
            self.path,
            self._row,
            part.row_of(self._first + self._length - 1) + 1 - self._row,
            self._ends,
            part.counts,
            part.shards,
            self._open,
            Origin(Decoders(options.decoding), options.subflavors),
        )
        self.tensor = _raw_tensor(options.decoding.overrides)
        self.bytes_read: int = 0  # headers and padding of the tar included

    @property
    def can_read_rows(self) -> bool:
        """Whether samples have a raw tensor, and no code of the user sees it before its batch."""
        return self.tensor is not None and type(self) is WebdatasetSource

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
            (source := sources[number], source._rows(wanted[first:end]))
            for number, first, end in runs
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
        with held(spans.ranges()):
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
