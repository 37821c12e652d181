"""Batch: samples collated into batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor
from energy_data.core.node import Items
from energy_data.core.profiler import COLLATING
from energy_data.core.sample import describe_source
from energy_data.core.spec import ItemKind
from energy_data.core.user_call import ErrorPolicy, UserCall
from energy_data.errors import DataError, SkipSample, SpecError
from energy_data.nodes.unary import UnaryNode, UnarySpec

MAX_LEFT_OUT = 1_000  # batches in a row


@frozen(kw_only=True)
class BatchSpec(UnarySpec):
    """Give `collate(samples)` of `batch_size` samples at a time.

    `aligned`: a batch is what one block of references gives, so samples left out make it shorter
    and never move others; for finite streams, where batch g must not depend on lanes. Otherwise
    batches are filled, and the last of a stream may be short (`drop_last`: it is left out).
    `SkipSample` in `collate` leaves the whole batch out.
    """

    kind = "batch"
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

    def replay_blocker(self) -> str:
        return self.kind

    def build(self, context: Context) -> BatchNode:
        return BatchNode(self, context)


@dataclass
class BatchCursor(Cursor):
    skipped: int = 0  # batches left out


@dataclass
class FailingBatchCursor(BatchCursor):
    failures: int = 0  # since the last success


class BatchNode(UnaryNode[BatchCursor]):
    """Collates blocks of samples."""

    leaves_out = (("skipped", "SkipSample while making batches"),)

    def __init__(self, spec: BatchSpec, context: Context) -> None:
        start = BatchCursor() if spec.on_failure is None else FailingBatchCursor()
        super().__init__(start, spec, context)
        doing = "making the batch that begins with"
        self.collate = UserCall(spec.collate, context, spec.on_failure, doing)
        self.spec, self.trace, self.profiler = spec, context.trace, context.profiler
        if spec.shows_none and spec.on_failure is None:  # who hears of failures would see them
            self.child.allow_batch_views()

    def draw(self, count: int) -> Items:
        batches: list[Any] = []
        left_out = 0
        while len(batches) < count:
            try:
                samples = self._aligned() if self.spec.aligned else self._filled()
            except StopIteration:
                if not batches:
                    raise
                break
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
                break  # a skipped batch keeps its place: the caller counts micro-batches
        return Items(batches, [None] * len(batches))

    def _aligned(self) -> list[Any]:
        return list(self.child.draw(self.spec.batch_size).values)

    def _filled(self) -> list[Any]:
        samples: list[Any] = []
        while len(samples) < self.spec.batch_size:
            try:
                samples += self.child.draw_some(self.spec.batch_size - len(samples)).values
            except StopIteration:
                if not samples or self.spec.drop_last:
                    raise
                break
        return samples
