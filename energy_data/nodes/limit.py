"""Limit: the first items of a child."""

from __future__ import annotations

from dataclasses import dataclass

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor
from energy_data.core.node import Items
from energy_data.errors import SpecError
from energy_data.nodes.unary import UnaryNode, UnarySpec


@frozen(kw_only=True)
class LimitSpec(UnarySpec):
    """End after the first `length` items of a stream, over all lanes, in every epoch."""

    kind = "limit"
    is_one_to_one = True

    length: int

    def __attrs_post_init__(self) -> None:
        if self.length < 0:
            raise SpecError(f"limit: length must be >= 0, got {self.length}.")
        if self.of.item_kind == "references":
            raise SpecError("limit: it stands above reading. Below it, use `subset` or `epochize`.")

    def num_items(self, context: Context, epoch: int) -> int | None:
        inner = super().num_items(context, epoch)
        return self.length if inner is None else min(inner, self.length)

    def items_per_lane(self, context: Context) -> int:
        own = self.limit_of_lane(context)
        try:
            return min(super().items_per_lane(context), own)
        except SpecError:  # the child has no known end
            return own

    def limit_of_lane(self, context: Context) -> int:
        """Return how many of the first items are in a lane: item i is in lane i mod lanes."""
        return (self.length + context.lanes - 1 - context.lane) // context.lanes

    def build(self, context: Context) -> LimitNode:
        return LimitNode(self, context)


@dataclass
class LimitCursor(Cursor):
    taken: int = 0  # items returned in this epoch


class LimitNode(UnaryNode[LimitCursor]):
    def __init__(self, spec: LimitSpec, context: Context) -> None:
        super().__init__(LimitCursor(), spec, context)
        self.length = spec.limit_of_lane(context)

    def draw(self, count: int) -> Items:
        left = self.length - self.cursor.taken
        if left <= 0:
            raise StopIteration
        items = self.child.draw(min(count, left))
        self.cursor.taken += len(items.values)
        return items
