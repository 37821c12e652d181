"""Concat: one child after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from attrs import frozen

from energy_data.core import recipe
from energy_data.core.context import Context
from energy_data.core.cursor import Cursor, Problem
from energy_data.core.node import Items, Node
from energy_data.core.recipe import FieldProblem, Yaml
from energy_data.core.spec import Spec, order_children
from energy_data.nodes.many import MultiChildNode, MultiChildSpec, built
from energy_data.nodes.references import LeafTable, OrderSpec
from energy_data.order.tree import ConcatOrder


@frozen
class ConcatSpec(MultiChildSpec, OrderSpec):
    """Play the children in their order, each to its end."""

    kind = "concat"
    needs_sizes = True

    yaml = Yaml()

    parts: tuple[Spec, ...] = recipe.children(
        None,
        "Children played one after another, each to its end.",
        "concat: [{path: ./coco}, {path: ./coyo}]",
        name="concat",
    )

    def check(self) -> Iterator[FieldProblem]:
        if not self.parts:
            yield "concat", "it has no children. List at least one."
        if len({part.item_kind for part in self.parts}) > 1:
            yield "concat", "the children return different kinds of items (references and samples)."

    @property
    def children(self) -> Mapping[str, Spec]:
        return order_children(self.parts)

    @property
    def size(self) -> Fraction:
        return sum((of.size for of in self.parts if isinstance(of, OrderSpec)), Fraction(0))

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> ConcatOrder:
        return ConcatOrder(
            [
                part.order(context.under(str(number)), leaves, endless=False)
                for number, part in enumerate(self.parts)
                if isinstance(part, OrderSpec)
            ]
        )

    def items_per_lane(self, context: Context) -> int:
        return sum(part.items_per_lane(context.under(name)) for name, part in self.children.items())

    def build(self, context: Context) -> Node[Any]:
        if self.item_kind == "references":
            return OrderSpec.build(self, context)
        return ConcatNode(self, context)


@dataclass
class ConcatCursor(Cursor):
    child: int = 0  # number of the current child


class ConcatNode(MultiChildNode[ConcatCursor]):
    def __init__(self, spec: ConcatSpec, context: Context) -> None:
        super().__init__(ConcatCursor(), built(spec.children, context))

    def faults(self, at: ConcatCursor) -> Iterator[Problem]:
        if at.child > len(self.children):
            yield "child", f"must be one of {len(self.children)}, got {at.child}"

    def draw(self, count: int) -> Items:
        while self.cursor.child < len(self.children):
            try:
                return self.draw_from(self.cursor.child, count)
            except StopIteration:
                self.cursor.child += 1
        raise StopIteration
