"""Epochize: passes of a length of one's own over a child that goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.keys import key
from energy_data.core.node import Change, Cursor, ItemRef, Node
from energy_data.core.spec import ItemKind, Spec
from energy_data.errors import SpecError
from energy_data.nodes.references import LeafTable, OrderSpec
from energy_data.order.permutation import permute
from energy_data.order.tree import VirtualEpochOrder

T = TypeVar("T")


@frozen(kw_only=True)
class EpochizeSpec(OrderSpec):
    """End after `length` items over all lanes; the next epoch goes on where the last ended."""

    kind = "epochize"
    keeps_place: ClassVar[bool] = True

    of: Spec
    length: int

    def __attrs_post_init__(self) -> None:
        if self.length < 1:
            raise SpecError(f"epochize: length must be >= 1, got {self.length}.")

    @property
    def children(self) -> Mapping[str, Spec]:
        return {"of": self.of}

    @property
    def item_kind(self) -> ItemKind:
        return self.of.item_kind

    @property
    def size(self) -> Fraction:
        return Fraction(self.length)

    def describe(self) -> list[Any]:
        return ["epochize", self.length, {"of": self.of.describe()}]

    @classmethod
    def from_description(cls, said: list[Any], children: Sequence[OrderSpec]) -> EpochizeSpec:
        return cls(length=said[1], of=children[0])

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> VirtualEpochOrder:
        assert isinstance(self.of, OrderSpec)
        below = leaves if endless else leaves.at(None)  # passes of a parent are not counted here
        child = self.of.order(context.under("of"), below, endless=True)
        position = _position(context)
        return VirtualEpochOrder(child, length=self.length, position=position, lanes=context.lanes)

    def replay_blocker(self) -> str | None:
        return self.of.replay_blocker()

    def build(self, context: Context) -> Node[Any, Any]:
        if self.item_kind == "references":
            return super().build(context)
        return EpochizeNode(self, context)


@dataclass
class EpochizeCursor(Cursor):
    epoch: int = 0  # epochs finished
    taken: int = 0  # items given since the first epoch began


class EpochizeNode(Node[Any, EpochizeCursor]):
    """Epochs over a stream; `length` items over all lanes each, shared out evenly."""

    def __init__(self, spec: EpochizeSpec, context: Context) -> None:
        super().__init__(EpochizeCursor(), {"of": spec.of.build(context.under("of"))})
        self.length, self.lanes, self.lane = spec.length, context.lanes, context.lane

    def draw(self, count: int) -> list[Any]:
        return self._of_epoch(self.children["of"].draw, count)

    def draw_marked(self, count: int) -> list[tuple[ItemRef, Any]]:
        return self._of_epoch(self.children["of"].draw_marked, count)

    def replay(self, marks: Sequence[ItemRef]) -> Sequence[Any]:
        return self.children["of"].replay(marks)

    def remap(self, marks: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        return self.children["of"].remap(marks, change)

    def _of_epoch(self, draw: Callable[[int], Sequence[T]], count: int) -> list[T]:
        at = self.cursor
        # Item i of the run is in lane i mod lanes, as micro-batches are dealt.
        end = ((at.epoch + 1) * self.length + self.lanes - 1 - self.lane) // self.lanes
        if at.taken >= end:
            raise StopIteration
        items = list(draw(min(count, end - at.taken)))
        at.taken += len(items)
        return items

    def rewind(self) -> None:
        """Begin the next epoch; the child goes on."""
        self.cursor = EpochizeCursor(epoch=self.cursor.epoch + 1, taken=self.cursor.taken)


def _position(context: Context) -> int:
    place = permute(context.lane, context.lanes, key(context.seed, "epochize", *context.path))
    return int(place)
