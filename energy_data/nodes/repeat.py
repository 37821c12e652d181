"""Repeat: several passes over a child."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.node import Change, Cursor, ItemRef, Node
from energy_data.core.spec import ItemKind, Spec
from energy_data.errors import SpecError
from energy_data.nodes.references import LeafTable, OrderSpec
from energy_data.order.tree import RepeatOrder

T = TypeVar("T")


@frozen(kw_only=True)
class RepeatSpec(OrderSpec):
    """Play the child `times` times, each pass its next epoch; `times=None`: without end."""

    kind = "repeat"
    needs_sizes: ClassVar[bool] = True

    of: Spec
    times: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.times is not None and self.times < 1:
            raise SpecError(f"repeat: times must be >= 1, got {self.times}.")
        if self.times is None and self.item_kind == "references":
            raise SpecError("repeat: give `times`; training repeats without end by itself.")

    @property
    def children(self) -> Mapping[str, Spec]:
        return {"of": self.of}

    @property
    def item_kind(self) -> ItemKind:
        return self.of.item_kind

    @property
    def size(self) -> Fraction:
        assert isinstance(self.of, OrderSpec)
        return self.of.size * (self.times or 1)

    def describe(self) -> list[Any]:
        return ["repeat", self.times, {"of": self.of.describe()}]

    @classmethod
    def from_description(cls, said: list[Any], children: Sequence[OrderSpec]) -> RepeatSpec:
        return cls(times=said[1], of=children[0])

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> RepeatOrder:
        assert isinstance(self.of, OrderSpec)
        child = self.of.order(context.under("of"), leaves, endless=False)
        return RepeatOrder(child, times=self.times or 1)

    def replay_blocker(self) -> str | None:
        return self.of.replay_blocker()

    def build(self, context: Context) -> Node[Any, Any]:
        if self.item_kind == "references":
            return super().build(context)
        return RepeatNode(self, context)


@dataclass
class RepeatCursor(Cursor):
    done: int = 0  # passes finished
    given: bool = False  # whether this pass has given an item: an empty child must not spin


class RepeatNode(Node[Any, RepeatCursor]):
    """Passes over a stream; the child is rewound at its end."""

    def __init__(self, spec: RepeatSpec, context: Context) -> None:
        super().__init__(RepeatCursor(), {"of": spec.of.build(context.under("of"))})
        self.times = spec.times

    def draw(self, count: int) -> list[Any]:
        return self._repeated(self.children["of"].draw, count)

    def draw_marked(self, count: int) -> list[tuple[ItemRef, Any]]:
        return self._repeated(self.children["of"].draw_marked, count)

    def replay(self, marks: Sequence[ItemRef]) -> Sequence[Any]:
        return self.children["of"].replay(marks)

    def remap(self, marks: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        return self.children["of"].remap(marks, change)

    def _repeated(self, draw: Callable[[int], Sequence[T]], count: int) -> list[T]:
        at, child = self.cursor, self.children["of"]
        while True:
            try:
                items = list(draw(count))
            except StopIteration:
                if not at.given or (self.times is not None and at.done + 1 >= self.times):
                    raise
                child.rewind()
                at.done, at.given = at.done + 1, False
            else:
                at.given = at.given or bool(items)
                return items
