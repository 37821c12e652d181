"""`mix`: batches with an exact part of each child."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from attrs import field, frozen

from energy_data.config.definitions import (
    Definition,
    Group,
    Mode,
    Nodes,
    Part,
    Share,
    check_some_share,
    key,
)
from energy_data.config.diagnostics import Diagnostics
from energy_data.config.rules import number, one_of
from energy_data.nodes.concat import ConcatSpec
from energy_data.nodes.mix import Mixed, MixSpec
from energy_data.nodes.references import OrderSpec

MAX_WEIGHT = 1e15


@frozen(kw_only=True, eq=False)
class MixedPart(Part):
    """A child of `mix`."""

    share_key: ClassVar[str | None] = "weight"

    weight: float = field(
        default=1.0,
        metadata=key(
            number(MAX_WEIGHT),
            "Part of each batch, on any scale. 0: listed, never drawn.",
            "weight: 2.5",
        ),
    )


@frozen(kw_only=True, eq=False)
class Mix:
    """What stands below `mix`."""

    by: Literal["samples", "batches"] = field(
        default="samples",
        metadata=key(
            one_of("samples", "batches"),
            "Each batch has its exact part of each child, or it is of one child, by weight.",
            "by: batches",
        ),
    )
    parts: tuple[MixedPart, ...] = field(
        metadata=key(
            Nodes(MixedPart),
            "The children; one after another in validation.",
            "parts: [{path: ./coco, weight: 3}, {path: ./coyo}]",
        )
    )


@frozen(kw_only=True, eq=False)
class MixDefinition(Definition):
    """Children mixed batch by batch."""

    kind: ClassVar[str] = "mix"
    weighs: ClassVar[bool] = True
    outermost: ClassVar[bool] = True

    mix: Mix = field(
        metadata=key(
            Group(Mix),
            "Children of which every batch has its exact part; the outermost node of a split.",
            "mix: {parts: [{path: ./coco, weight: 3}, {path: ./coyo}]}",
        )
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children."""
        return self.mix.parts

    @property
    def label(self) -> str:
        """What the node is called in the tree that is shown to people."""
        return f"mix by {self.mix.by}"

    def check(self, faults: Diagnostics) -> None:
        """Note it if there is nothing to draw."""
        check_some_share(self, faults)

    def compile(
        self, children: Sequence[OrderSpec], shares: Sequence[Share], mode: Mode
    ) -> OrderSpec:
        """Return a mix in training, else the children one after another."""
        if mode == "val":
            return ConcatSpec(tuple(children))
        pairs = zip(children, shares, strict=True)
        return MixSpec(tuple(Mixed(spec, weight) for spec, weight in pairs), self.mix.by)

    def plain(self, children: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the node as it is written in YAML."""
        return {self.kind: {"by": self.mix.by, "parts": list(children)}}
