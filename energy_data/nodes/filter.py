"""Filter: the items that pass a test."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.node import Change, Cursor, Mark, Node
from energy_data.core.profiler import FILTERING
from energy_data.core.spec import Gives, Spec
from energy_data.core.user_call import Call


@frozen(kw_only=True)
class FilterSpec(Spec):
    """Give the items for which `predicate(item)` is true, and does not raise `SkipSample`.

    The predicate must depend on the item alone: the order of the stream depends on what it says.
    """

    keeps_count: ClassVar[bool] = True

    of: Spec
    predicate: Callable[[Any], bool]

    @property
    def children(self) -> Mapping[str, Spec]:
        return {"of": self.of}

    @property
    def gives(self) -> Gives:
        return self.of.gives

    def cannot_make_again(self) -> str | None:
        return self.of.cannot_make_again()

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
        self.test = Call(spec.predicate, context, None, "testing", must_know=True)
        self.meter = context.meter

    def draw(self, count: int) -> list[Any]:
        drawn = self.children["of"].draw(count)
        began = time.perf_counter()
        passed = self.test.each(drawn, self.cursor)
        items = [item for item, good in zip(drawn, passed, strict=True) if good]
        self.meter.charge(FILTERING, time.perf_counter() - began)
        self.cursor.rejected += len(drawn) - len(items)
        return items

    def draw_marked(self, count: int) -> list[tuple[Mark, Any]]:
        drawn = self.children["of"].draw_marked(count)
        began = time.perf_counter()
        items, marks = [item for _, item in drawn], [mark for mark, _ in drawn]
        passed = self.test.each(items, self.cursor, marks)
        kept = [pair for pair, good in zip(drawn, passed, strict=True) if good]
        self.meter.charge(FILTERING, time.perf_counter() - began)
        self.cursor.rejected += len(drawn) - len(kept)
        return kept

    def again(self, marks: Sequence[Mark]) -> Sequence[Any]:
        return self.children["of"].again(marks)

    def moved(self, marks: Sequence[Mark], change: Change) -> list[Mark | None]:
        return self.children["of"].moved(marks, change)
