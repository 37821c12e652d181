"""`blend`: children mixed by weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from attrs import field, frozen

from energy_data.metadataset.definitions import (
    Definition,
    Mode,
    Nodes,
    Part,
    check_some_share,
    key,
)
from energy_data.metadataset.faults import Faults
from energy_data.metadataset.rules import number
from energy_data.nodes.blend import BlendSpec
from energy_data.nodes.blend import Part as Weighted
from energy_data.nodes.concat import ConcatSpec
from energy_data.references import OrderSpec

MAX_WEIGHT = 1e15


@frozen(kw_only=True, eq=False)
class WeightedPart(Part):
    """A child of `blend`."""

    share_key: ClassVar[str | None] = "weight"

    weight: float = field(
        default=1.0,
        metadata=key(
            number(MAX_WEIGHT),
            "Share among its siblings, on any scale. 0: listed, never drawn.",
            "weight: 2.5",
        ),
    )


@frozen(kw_only=True, eq=False)
class BlendDefinition(Definition):
    """Children mixed by weight."""

    kind: ClassVar[str] = "blend"
    weighs: ClassVar[bool] = True

    blend: tuple[WeightedPart, ...] = field(
        metadata=key(
            Nodes(WeightedPart),
            "Children drawn in proportion to their `weight`; one after another in validation.",
            "blend: [{path: ./coco, weight: 2}, {path: ./coyo}]",
        )
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children."""
        return self.blend

    def check(self, faults: Faults) -> None:
        """Note it if there is nothing to draw."""
        check_some_share(self, faults)

    def compile(
        self, children: Sequence[OrderSpec], shares: Sequence[float], mode: Mode
    ) -> OrderSpec:
        """Return a blend in training, else the children one after another."""
        if mode == "val":
            return ConcatSpec(tuple(children))
        pairs = zip(children, shares, strict=True)
        return BlendSpec(tuple(Weighted(spec, weight) for spec, weight in pairs))
