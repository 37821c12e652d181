"""`concat`: children one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from attrs import field, frozen

from energy_data.config.definitions import Definition, Mode, Nodes, Part, Share, key
from energy_data.nodes.concat import ConcatSpec
from energy_data.nodes.references import OrderSpec


@frozen(kw_only=True, eq=False)
class ConcatDefinition(Definition):
    """Children one after another."""

    kind: ClassVar[str] = "concat"

    concat: tuple[Part, ...] = field(
        metadata=key(
            Nodes(Part),
            "Children played one after another, each to its end.",
            "concat: [{path: ./coco}, {path: ./coyo}]",
        )
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children."""
        return self.concat

    def compile(
        self, children: Sequence[OrderSpec], shares: Sequence[Share], mode: Mode
    ) -> OrderSpec:
        """Return the children one after another."""
        return ConcatSpec(tuple(children))
