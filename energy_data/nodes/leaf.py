"""Leaf: the samples of one dataset split, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.spec import Spec
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

    def to_dict(
        self, child: Callable[[Spec], Any] | None = None, *, defaults: bool = False
    ) -> list[Any]:
        leaf = self.leaf
        facts = {"id": leaf.id, "size": leaf.num_samples, "fingerprint": leaf.fingerprint}
        return [self.kind, facts]

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> LeafOrder:
        entry = leaves.entry_of(context)
        leaf = int(leaves.leaf_of_entry[entry])
        return LeafOrder(entry, leaf, leaves.shares, len(leaves.entries))
