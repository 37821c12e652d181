"""Repeat: several passes over a child."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from attrs import frozen

from energy_data.core import recipe
from energy_data.core.context import Context
from energy_data.core.cursor import Cursor
from energy_data.core.node import Items, Node
from energy_data.core.recipe import FieldProblem, Yaml
from energy_data.core.rules import COUNT
from energy_data.core.spec import Spec
from energy_data.nodes.references import LeafTable, OrderSpec
from energy_data.nodes.unary import UnaryNode, UnarySpec
from energy_data.order.tree import RepeatOrder


@frozen(kw_only=True)
class RepeatSpec(UnarySpec, OrderSpec):
    """Play the child `times` times, each pass its next epoch; `times=None`: without end."""

    kind = "repeat"
    needs_sizes = True

    yaml = Yaml(
        about="Several passes over one child, each its next epoch.",
        example="repeat: {times: 3, of: {path: ./coco}}",
    )

    of: Spec = recipe.child("What is repeated.", "of: {path: ./coco}")
    times: int | None = recipe.key(
        COUNT, "Number of passes.", "times: 3", default=None, required=True
    )

    def check(self) -> Iterator[FieldProblem]:
        if self.times is not None and self.times < 1:
            yield "times", f"times must be >= 1, got {self.times}."
        if self.times is None and self.item_kind == "references":
            yield "", "the key 'times' is missing; training repeats forever by itself. Add it."

    @property
    def size(self) -> Fraction:
        assert isinstance(self.of, OrderSpec)
        return self.of.size * (self.times or 1)

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> RepeatOrder:
        assert isinstance(self.of, OrderSpec)
        child = self.of.order(context.under("of"), leaves, endless=False)
        return RepeatOrder(child, times=self.times or 1)

    def build(self, context: Context) -> Node[Any]:
        if self.item_kind == "references":
            return OrderSpec.build(self, context)
        return RepeatNode(self, context)


@dataclass
class RepeatCursor(Cursor):
    done: int = 0  # passes finished
    given: bool = False  # whether this pass has returned an item: an empty child ends the stream


class RepeatNode(UnaryNode[RepeatCursor]):
    def __init__(self, spec: RepeatSpec, context: Context) -> None:
        super().__init__(RepeatCursor(), spec, context)
        self.times = spec.times

    def draw(self, count: int) -> Items:
        at = self.cursor
        while True:
            try:
                items = self.child.draw(count)
            except StopIteration:
                if not at.given or (self.times is not None and at.done + 1 >= self.times):
                    raise
                self.child.rewind()
                at.done, at.given = at.done + 1, False
            else:
                at.given = at.given or bool(items.values)
                return items
