"""Leaf: the samples of one dataset split, epoch after epoch."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from attrs import frozen

from energy_data.core.context import Context
from energy_data.errors import SpecError
from energy_data.nodes.leaves import Leaf
from energy_data.nodes.references import LeafTable, OrderSpec
from energy_data.order.tree import LeafOrder


@frozen
class LeafSpec(OrderSpec):
    """Draw from one dataset split, each sample once per epoch over all lanes."""

    kind = "leaf"
    leaf: Leaf

    def __attrs_post_init__(self) -> None:
        if not self.leaf.num_samples:
            raise SpecError(
                f"leaf {self.leaf.id!r}: it has no samples. Take it out, or look at its split "
                f"and subset."
            )

    @property
    def size(self) -> Fraction:
        return Fraction(self.leaf.num_samples)

    def describe(self) -> list[Any]:
        return ["leaf", self.leaf.id]

    @classmethod
    def from_description(cls, said: list[Any], children: Sequence[OrderSpec]) -> LeafSpec:
        raise TypeError(f"leaf {said[1]!r}: a leaf needs its source; see energy_data.nodes.kinds")

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> LeafOrder:
        entry = leaves.entry_of(context)
        leaf = int(leaves.leaf_of_entry[entry])
        return LeafOrder(entry, leaf, leaves.shares, len(leaves.entries))
