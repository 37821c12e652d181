"""Filter: the items that pass a test."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.node import Items
from energy_data.core.profiler import FILTERING
from energy_data.core.spec import Spec
from energy_data.core.user_call import UserCall
from energy_data.nodes.unary import SkipCursor, UnaryNode, UnarySpec


@frozen(kw_only=True)
class FilterSpec(UnarySpec):
    """Keep items for which `predicate(item)` is true. If it raises `SkipSample`, skip the item.

    The predicate must depend on the item alone: the order of the stream depends on its results.
    """

    kind = "filter"
    is_one_to_one = True
    num_items, items_per_lane = Spec.num_items, Spec.items_per_lane  # known only once it has run

    predicate: Callable[[Any], bool]

    def build(self, context: Context) -> FilterNode:
        return FilterNode(self, context)


class FilterNode(UnaryNode[SkipCursor]):
    leaves_out = (("skipped", "rejected by a filter"),)

    def __init__(self, spec: FilterSpec, context: Context) -> None:
        super().__init__(SkipCursor(), spec, context)
        self.call = UserCall(spec.predicate, context, "testing", FILTERING, requires_identity=True)

    def draw(self, count: int) -> Items:
        items, refs = self.child.draw(count)
        passed = self.call.each(list(items), self.cursor, refs)
        kept = Items(list(compress(items, passed)), list(compress(refs, passed)))
        self.cursor.skipped += len(items) - len(kept.values)
        return kept
