"""Epochize: epochs of a given length over an endless child."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from attrs import frozen

from energy_data.core import recipe
from energy_data.core.context import Context
from energy_data.core.cursor import Cursor
from energy_data.core.keys import key
from energy_data.core.node import Items, Node
from energy_data.core.recipe import FieldProblem, Yaml
from energy_data.core.rules import COUNT
from energy_data.core.spec import Spec
from energy_data.nodes.references import LeafTable, OrderSpec
from energy_data.nodes.unary import UnaryNode, UnarySpec
from energy_data.order.permutation import permute
from energy_data.order.tree import VirtualEpochOrder


@frozen(kw_only=True)
class EpochizeSpec(UnarySpec, OrderSpec):
    """End after `length` items over all lanes; the next epoch continues where the last ended."""

    kind = "epochize"
    keeps_place = True

    yaml = Yaml(
        about="Epochs of a given length; the next one continues where the last one ended.",
        example="epochize: {length: 100000, of: {path: ./coco}}",
    )

    of: Spec = recipe.child("Where the samples come from; it continues.", "of: {path: ./coco}")
    length: int = recipe.key(
        COUNT, "Samples in an epoch, over all ranks and workers.", "length: 100000"
    )

    def check(self) -> Iterator[FieldProblem]:
        if self.length < 1:
            yield "length", f"length must be >= 1, got {self.length}."

    @property
    def size(self) -> Fraction:
        return Fraction(self.length)

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> VirtualEpochOrder:
        assert isinstance(self.of, OrderSpec)
        below = leaves if endless else leaves.at(None)  # a finite parent counts other passes
        child = self.of.order(context.under("of"), below, endless=True)
        epochs_key = key(context.seed, "epochize", *context.path)
        position = permute(context.lane, context.lanes, epochs_key)
        return VirtualEpochOrder(
            child, length=self.length, position=int(position), lanes=context.lanes
        )

    def build(self, context: Context) -> Node[Any]:
        if self.item_kind == "references":
            return OrderSpec.build(self, context)
        return EpochizeNode(self, context)


@dataclass
class EpochizeCursor(Cursor):
    epoch: int = 0  # epochs finished
    taken: int = 0  # items returned since the first epoch began


class EpochizeNode(UnaryNode[EpochizeCursor]):
    """Epochs over a stream of `length` items over all lanes each, dealt to the lanes evenly."""

    def __init__(self, spec: EpochizeSpec, context: Context) -> None:
        super().__init__(EpochizeCursor(), spec, context)
        self.length, self.lanes, self.lane = spec.length, context.lanes, context.lane

    def draw(self, count: int) -> Items:
        at = self.cursor
        # Item i of the run is in lane i mod lanes, as micro-batches are.
        end = ((at.epoch + 1) * self.length + self.lanes - 1 - self.lane) // self.lanes
        if at.taken >= end:
            raise StopIteration
        items = self.child.draw(min(count, end - at.taken))
        at.taken += len(items.values)
        return items

    def rewind(self) -> None:
        """Begin the next epoch. The child continues."""
        self.cursor = EpochizeCursor(epoch=self.cursor.epoch + 1, taken=self.cursor.taken)
