"""Batch: samples collated into batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.node import EmptyGuard, Items
from energy_data.core.profiler import COLLATING
from energy_data.core.recipe import check_whole
from energy_data.core.spec import ItemKind
from energy_data.core.user_call import MAKING_BATCH, SKIPPED, ErrorPolicy, UserCall
from energy_data.nodes.unary import SkipCursor, UnaryNode, UnarySpec


@frozen(kw_only=True)
class BatchSpec(UnarySpec):
    """Return `collate(samples)` of `batch_size` samples at a time.

    If `aligned`, a batch has the samples of one block of references, so skipped samples make it
    shorter and never move others. This is for finite streams, where batch g must not depend on the
    lanes. Otherwise batches are filled, and the last batch of a stream may be short (`drop_last`
    drops it). If `collate` raises `SkipSample`, the batch is skipped.
    """

    kind = "batch"
    item_kind: ClassVar[ItemKind] = "batches"
    unsaved = ("on_failure", "shows_none")
    batch_size: int
    collate: Callable[[list[Any]], Any]
    drop_last: bool = False
    aligned: bool = False
    on_failure: ErrorPolicy | None = None  # None: errors are raised
    shows_none: bool = False  # `collate` passes no sample to user code

    def __attrs_post_init__(self) -> None:
        check_whole("batch_size", self.batch_size, 1)

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


class BatchNode(UnaryNode[SkipCursor]):
    """Collates blocks of samples."""

    leaves_out = (("skipped", "SkipSample or error while making batches"),)

    def __init__(self, spec: BatchSpec, context: Context) -> None:
        super().__init__(SkipCursor(), spec, context)
        self.spec = spec
        policy = spec.on_failure
        self.collate = UserCall(spec.collate, context, MAKING_BATCH, COLLATING, on_failure=policy)
        if spec.shows_none and policy is None:  # an error handler would see samples
            self.child.allow_batch_views()

    def draw(self, count: int) -> Items:
        guard: EmptyGuard | None = None
        while True:
            samples = self._aligned() if self.spec.aligned else self._filled()
            if samples:
                (batch,) = self.collate.each([samples], self.cursor)
                if batch is not SKIPPED:
                    return Items([batch], [None])
                self.cursor.skipped += 1
            if self.spec.aligned:
                return Items([], [])  # the caller counts micro-batches, also skipped ones
            guard = guard or EmptyGuard()
            guard.count((), self.spec.batch_size)

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
