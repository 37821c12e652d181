"""Limit: the first items of a child."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.node import Change, Cursor, ItemRef, Node
from energy_data.core.spec import ItemKind, Spec
from energy_data.errors import SpecError

T = TypeVar("T")


@frozen(kw_only=True)
class LimitSpec(Spec):
    """End after the first `length` items of a stream, over all lanes; each epoch begins anew."""

    kind = "limit"
    is_one_to_one: ClassVar[bool] = True

    of: Spec
    length: int

    def __attrs_post_init__(self) -> None:
        if self.length < 0:
            raise SpecError(f"limit: length must be >= 0, got {self.length}.")
        if self.of.item_kind == "references":
            raise SpecError("limit: it stands above reading. Below it, use `subset` or `epochize`.")

    @property
    def children(self) -> Mapping[str, Spec]:
        return {"of": self.of}

    @property
    def item_kind(self) -> ItemKind:
        return self.of.item_kind

    def describe(self) -> list[Any]:
        return ["limit", self.length, {"of": self.of.describe()}]

    def num_items(self, context: Context, epoch: int) -> int | None:
        inner = self.of.num_items(context.under("of"), epoch)
        return self.length if inner is None else min(inner, self.length)

    def items_per_lane(self, context: Context) -> int:
        own = self.items_of_lane(context)
        try:
            return min(self.of.items_per_lane(context.under("of")), own)
        except SpecError:  # what is under it has no end that is known: this is it
            return own

    def items_of_lane(self, context: Context) -> int:
        """Return how many of the first items a lane gives: item i is in lane i mod lanes."""
        return (self.length + context.lanes - 1 - context.lane) // context.lanes

    def replay_blocker(self) -> str | None:
        return self.of.replay_blocker()

    def build(self, context: Context) -> LimitNode:
        return LimitNode(self, context)


@dataclass
class LimitCursor(Cursor):
    taken: int = 0  # items given in this epoch


class LimitNode(Node[Any, LimitCursor]):
    """The first items of a stream; item i of the run is in lane i mod lanes."""

    def __init__(self, spec: LimitSpec, context: Context) -> None:
        super().__init__(LimitCursor(), {"of": spec.of.build(context.under("of"))})
        self.length = spec.items_of_lane(context)

    def draw(self, count: int) -> list[Any]:
        return self._first(self.children["of"].draw, count)

    def draw_marked(self, count: int) -> list[tuple[ItemRef, Any]]:
        return self._first(self.children["of"].draw_marked, count)

    def _first(self, draw: Callable[[int], Sequence[T]], count: int) -> list[T]:
        left = self.length - self.cursor.taken
        if left <= 0:
            raise StopIteration
        items = list(draw(min(count, left)))
        self.cursor.taken += len(items)
        return items

    def replay(self, marks: Sequence[ItemRef]) -> Sequence[Any]:
        return self.children["of"].replay(marks)

    def remap(self, marks: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        return self.children["of"].remap(marks, change)
