"""Batch: samples collated into batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.node import Cursor, Node
from energy_data.core.profiler import COLLATING
from energy_data.core.sample import describe_source
from energy_data.core.spec import ItemKind, Spec
from energy_data.core.user_call import ErrorPolicy, UserCall
from energy_data.errors import DataError, SkipSample, SpecError

MAX_EMPTY_DRAWS = 10_000  # blocks in a row without a sample: a filter that lets nothing pass
MAX_LEFT_OUT = 1_000  # batches in a row


@frozen(kw_only=True)
class BatchSpec(Spec):
    """Give `collate(samples)` of `batch_size` samples at a time.

    `aligned`: a batch is what one block of references gives, so samples left out make it shorter
    and never move others; for finite streams, where batch g must not depend on lanes. Otherwise
    batches are filled, and the last of a stream may be short (`drop_last`: it is left out).
    `SkipSample` in `collate` leaves the whole batch out.
    """

    kind = "batch"
    of: Spec
    batch_size: int
    collate: Callable[[list[Any]], Any]
    drop_last: bool = False
    aligned: bool = False
    on_failure: ErrorPolicy | None = None  # None: errors are raised
    shows_none: bool = False  # `collate` shows no sample to code of the user's

    def __attrs_post_init__(self) -> None:
        if self.batch_size < 1:
            raise SpecError(f"batch_size: must be >= 1, got {self.batch_size}.")

    @property
    def children(self) -> Mapping[str, Spec]:
        return {"of": self.of}

    @property
    def item_kind(self) -> ItemKind:
        return "batches"

    def describe(self) -> list[Any]:
        return ["batch", self.batch_size, self.drop_last, self.aligned, {"of": self.of.describe()}]

    def num_items(self, context: Context, epoch: int) -> int | None:
        samples = self.of.num_items(context.under("of"), epoch)
        if samples is None or not self.aligned:
            return None
        return -(-samples // self.batch_size)

    def items_per_lane(self, context: Context) -> int:
        return self.of.items_per_lane(context.under("of")) // self.batch_size

    def build(self, context: Context) -> BatchNode:
        return BatchNode(self, context)


@dataclass
class BatchCursor(Cursor):
    skipped: int = 0  # batches left out


@dataclass
class FailingBatchCursor(BatchCursor):
    failures: int = 0  # since the last success


class BatchNode(Node[Any, BatchCursor]):
    """Collates blocks of samples."""

    leaves_out = (("skipped", "SkipSample while making batches"),)

    def __init__(self, spec: BatchSpec, context: Context) -> None:
        start = BatchCursor() if spec.on_failure is None else FailingBatchCursor()
        super().__init__(start, {"of": spec.of.build(context.under("of"))})
        doing = "making the batch that begins with"
        self.collate = UserCall(spec.collate, context, spec.on_failure, doing)
        self.spec, self.trace, self.profiler = spec, context.trace, context.profiler
        if spec.shows_none and spec.on_failure is None:  # who hears of failures would see them
            self.children["of"].allow_batch_views()

    def draw(self, count: int) -> list[Any]:
        batches: list[Any] = []
        left_out = 0
        while len(batches) < count:
            try:
                samples = self._aligned() if self.spec.aligned else self._filled()
            except StopIteration:
                if batches:
                    return batches
                raise
            if self.trace is not None and samples:
                self.trace(f"the batch that begins with {describe_source(samples[0])}")
            began = time.perf_counter()
            try:
                batches += [self.collate(samples, self.cursor)] if samples else []
            except SkipSample:
                self.cursor.skipped += 1
                samples = []
                left_out += 1
            else:
                left_out = 0
            if left_out > MAX_LEFT_OUT:
                raise DataError(
                    f"no batch came through in {left_out} in a row: making batches raises "
                    f"SkipSample for all of them. Look at what it does."
                )
            self.profiler.add(COLLATING, time.perf_counter() - began)
            if not samples and self.spec.aligned:
                return batches  # a batch left out keeps its place: the caller counts micro-batches
        return batches

    def _aligned(self) -> list[Any]:
        return list(self.children["of"].draw(self.spec.batch_size))

    def _filled(self) -> list[Any]:
        samples: list[Any] = []
        empty = 0
        while len(samples) < self.spec.batch_size:
            try:
                drawn = self.children["of"].draw(self.spec.batch_size - len(samples))
            except StopIteration:
                if not samples or self.spec.drop_last:
                    raise
                return samples
            empty = 0 if drawn else empty + 1
            if empty > MAX_EMPTY_DRAWS:
                raise DataError(
                    f"no sample came through in {empty} blocks in a row. Look at what leaves "
                    f"samples out: a filter, SkipSample, or bad data."
                )
            samples += drawn
        return samples
