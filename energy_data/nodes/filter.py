"""Filter: the items that pass a test."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.node import Change, Cursor, ItemRef, Node
from energy_data.core.profiler import FILTERING
from energy_data.core.spec import ItemKind, Spec
from energy_data.core.user_call import UserCall


@frozen(kw_only=True)
class FilterSpec(Spec):
    """Give the items for which `predicate(item)` is true, and does not raise `SkipSample`.

    The predicate must depend on the item alone: the order of the stream depends on what it says.
    """

    kind = "filter"
    is_one_to_one: ClassVar[bool] = True

    of: Spec
    predicate: Callable[[Any], bool]

    @property
    def children(self) -> Mapping[str, Spec]:
        return {"of": self.of}

    @property
    def item_kind(self) -> ItemKind:
        return self.of.item_kind

    def replay_blocker(self) -> str | None:
        return self.of.replay_blocker()

    def build(self, context: Context) -> FilterNode:
        return FilterNode(self, context)


@dataclass
class FilterCursor(Cursor):
    rejected: int = 0  # items left out


class FilterNode(Node[Any, FilterCursor]):
    """A test over a stream."""

    leaves_out = (("rejected", "rejected by a filter"),)

    def __init__(self, spec: FilterSpec, context: Context) -> None:
        super().__init__(FilterCursor(), {"of": spec.of.build(context.under("of"))})
        self.test = UserCall(spec.predicate, context, None, "testing", requires_identity=True)
        self.profiler = context.profiler

    def draw(self, count: int) -> list[Any]:
        drawn = self.children["of"].draw(count)
        began = time.perf_counter()
        passed = self.test.each(drawn, self.cursor)
        items = [item for item, good in zip(drawn, passed, strict=True) if good]
        self.profiler.add(FILTERING, time.perf_counter() - began)
        self.cursor.rejected += len(drawn) - len(items)
        return items

    def draw_marked(self, count: int) -> list[tuple[ItemRef, Any]]:
        drawn = self.children["of"].draw_marked(count)
        began = time.perf_counter()
        items, marks = [item for _, item in drawn], [mark for mark, _ in drawn]
        passed = self.test.each(items, self.cursor, marks)
        kept = [pair for pair, good in zip(drawn, passed, strict=True) if good]
        self.profiler.add(FILTERING, time.perf_counter() - began)
        self.cursor.rejected += len(drawn) - len(kept)
        return kept

    def replay(self, marks: Sequence[ItemRef]) -> Sequence[Any]:
        return self.children["of"].replay(marks)

    def remap(self, marks: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        return self.children["of"].remap(marks, change)
