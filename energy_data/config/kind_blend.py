"""`blend`: children mixed by weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from attrs import field, frozen

from energy_data.config.definitions import (
    Definition,
    Mode,
    Nodes,
    Part,
    Share,
    check_some_share,
    key,
)
from energy_data.config.diagnostics import Diagnostics
from energy_data.config.rules import one_of
from energy_data.config.schedules import plain_schedule, weight
from energy_data.nodes.blend import BlendSpec
from energy_data.nodes.blend import Part as Weighted
from energy_data.nodes.concat import ConcatSpec
from energy_data.nodes.references import OrderSpec
from energy_data.nodes.token_weights import blend_by_tokens
from energy_data.order.schedule import Schedule, check_weights

MAX_WEIGHT = 1e15


@frozen(kw_only=True, eq=False)
class WeightedPart(Part):
    """A child of `blend`."""

    share_key: ClassVar[str | None] = "weight"

    weight: float | Schedule = field(
        default=1.0,
        metadata=key(
            weight(MAX_WEIGHT),
            "Share among its siblings, on any scale, or how it changes. 0: listed, never drawn.",
            "weight: 2.5",
        ),
    )

    def plain(self) -> dict[str, Any]:
        """Return the key as it is written in YAML."""
        weight = self.weight
        return {"weight": plain_schedule(weight) if isinstance(weight, Schedule) else weight}


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
    weight_unit: Literal["samples", "tokens"] = field(
        default="samples",
        metadata=key(
            one_of("samples", "tokens"),
            "What weights are shares of: of tokens, each is divided by the mean length of its "
            "child.",
            "weight_unit: tokens",
        ),
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children."""
        return self.blend

    def check(self, faults: Diagnostics) -> None:
        """Note it if there is nothing to draw, or if there is a time when there is nothing."""
        check_some_share(self, faults)
        changing = [part for part in self.blend if isinstance(part.weight, Schedule)]
        try:
            if changing:
                check_weights([part.weight for part in self.blend])
        except ValueError as error:
            place, where = changing[0].of.places["weight"], changing[0].of.where
            faults.report(place, f"{where}.weight", f"{error}.")

    def compile(
        self, children: Sequence[OrderSpec], shares: Sequence[Share], mode: Mode
    ) -> OrderSpec:
        """Return a blend in training, else the children one after another."""
        if mode == "train" and self.weight_unit == "tokens":
            pairs = zip(children, shares, strict=True)
            return blend_by_tokens([Weighted(spec, weight) for spec, weight in pairs])
        return blended(children, shares, mode)

    def plain(self, children: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the node as it is written in YAML."""
        unit = {} if self.weight_unit == "samples" else {"weight_unit": self.weight_unit}
        return {self.kind: list(children), **unit}


def blended(children: Sequence[OrderSpec], shares: Sequence[float], mode: Mode) -> OrderSpec:
    """Return a blend in training, else the children one after another."""
    if mode == "val":
        return ConcatSpec(tuple(children))
    pairs = zip(children, shares, strict=True)
    return BlendSpec(tuple(Weighted(spec, weight) for spec, weight in pairs))
