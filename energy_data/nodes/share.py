"""Share: the batches of one share of an optimizer step, cut so the step has its exact size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count as count_from
from typing import Any, Literal

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor
from energy_data.core.node import EmptyGuard, Items
from energy_data.core.profiler import COLLATING
from energy_data.core.recipe import check_whole
from energy_data.core.spec import ItemKind
from energy_data.core.user_call import CALL, MAKING_BATCH, SKIPPED, ErrorPolicy, UserCall
from energy_data.nodes.buffered import PackingNode
from energy_data.nodes.unary import UnaryNode, UnarySpec
from energy_data.order.step_rules import share_size


@frozen(kw_only=True)
class ShareSpec(UnarySpec):
    """Return one share at a time: batches of `batch_size` documents and a shorter one.

    Item g of the run is share g. `shares` consecutive shares make an optimizer step, so share g
    belongs to step g // shares for any number of ranks. A sample is a document. Over packs, the
    last pack of a share is closed when the share is full. If `collate` raises `SkipSample`, the
    batch is skipped and another takes its place. For endless streams.

    Over a `GroupSpec`, which collates itself, `collate` is None. The last group of a share is cut
    when the share is full, and the rest stays pending; with `count="groups"`, a share is a number
    of complete groups.
    """

    kind = "share"
    unsaved = ("target", "on_failure", "shows_none")  # the target may change where a step ends
    batch_size: int
    collate: Callable[[list[Any]], Any] | None
    target: tuple[tuple[int, int], ...]  # documents of a step: (step, number from then on)
    shares: int
    count: Literal["documents", "groups"] = "documents"
    on_failure: ErrorPolicy | None = None  # None: errors are raised
    shows_none: bool = False  # `collate` passes no sample to user code

    def __attrs_post_init__(self) -> None:
        check_whole("batch_size", self.batch_size, 1)

    @property
    def item_kind(self) -> ItemKind:
        return "batches"

    def replay_blocker(self) -> str:
        return self.kind

    def build(self, context: Context) -> ShareNode:
        return ShareNode(self, context)


@dataclass
class ShareCursor(Cursor):
    given: int = 0  # shares returned
    skipped: int = 0  # batches skipped by `collate`
    failures: int = 0  # consecutive failures of `collate`


class ShareNode(UnaryNode[ShareCursor]):
    """Collates the samples of shares."""

    leaves_out = (("skipped", "SkipSample or error while making batches"),)

    def __init__(self, spec: ShareSpec, context: Context) -> None:
        super().__init__(ShareCursor(), spec, context)
        self.spec, self.first, self.lanes = spec, context.lane, context.lanes
        policy = spec.on_failure
        self.collate = spec.collate and UserCall(
            spec.collate, context, MAKING_BATCH, COLLATING, on_failure=policy
        )

    def begin_at(self, first: int) -> None:
        """Number the first share of this lane `first`; the default is the number of the lane.

        For a stage, which may begin at any micro-batch of the run.
        """
        self.first = first

    def draw(self, count: int) -> Items:
        items = list[Any]()
        for _ in range(count):
            number = self.cursor.given * self.lanes + self.first
            items.append(self._share(share_size(number, self.spec.target, self.spec.shares)))
            self.cursor.given += 1
        return Items(items, [None] * count)

    def _share(self, left: int) -> tuple[Any, ...]:
        batches, guard = list[Any](), EmptyGuard()
        for tried in count_from(0):
            if not left:
                break
            CALL.mark = (tried,)  # all batches of a share have the same number in the run
            try:
                made, amount = self._batch(left)
            finally:
                CALL.mark = ()
            guard.count(made)
            batches += made
            left -= amount
        return tuple(batches)

    def _batch(self, left: int) -> tuple[list[Any], int]:
        """Return the next batch and its part of the share; no batch if it was skipped."""
        if self.collate is None:
            return self._grouped(left)
        samples, documents = self._samples(left)
        batch = self.collate(samples, self.cursor)
        if batch is SKIPPED:
            self.cursor.skipped += 1
            return [], 0
        return [batch], documents

    def _grouped(self, left: int) -> tuple[list[Any], int]:
        counts_groups = self.spec.count == "groups"
        batches, documents = self._draw(1, None if counts_groups else left)
        if not counts_groups:
            return batches, documents
        for batch in batches:
            if isinstance(batch, dict):
                batch.setdefault("__groups__", 1)
        return batches, len(batches)

    def _samples(self, left: int) -> tuple[list[Any], int]:
        """Return the samples of one batch, of at most `left` documents, and their number."""
        samples, documents, guard = list[Any](), 0, EmptyGuard()
        while len(samples) < self.spec.batch_size and documents < left:
            drawn, docs = self._draw(self.spec.batch_size - len(samples), left - documents)
            documents += docs
            guard.count(drawn)
            samples += drawn
        return samples, documents

    def _draw(self, count: int, within: int | None) -> tuple[list[Any], int]:
        """Return some items of the child, of at most `within` documents, and their documents."""
        if isinstance(self.child, PackingNode):
            drawn = list(self.child.draw(1, within=within).values)
            return drawn, self.child.drawn_docs
        drawn = list(self.child.draw(min(count, within or count)).values)
        return drawn, len(drawn)
