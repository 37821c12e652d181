"""`epochize`: epochs of a length of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar

from attrs import field, frozen

from energy_data.config.definitions import Definition, Group, Mode, Node, Part, Share, key
from energy_data.config.rules import COUNT
from energy_data.nodes.epochize import EpochizeSpec
from energy_data.nodes.references import OrderSpec


@frozen(kw_only=True, eq=False)
class Epochize:
    """What stands below `epochize`."""

    length: int = field(
        metadata=key(COUNT, "Samples in an epoch, over all ranks and workers.", "length: 100000")
    )
    of: Definition = field(
        metadata=key(Node(), "What the samples come from; it goes on.", "of: {path: ./coco}")
    )


@frozen(kw_only=True, eq=False)
class EpochizeDefinition(Definition):
    """Epochs of a length of one's own."""

    kind: ClassVar[str] = "epochize"
    renews: ClassVar[bool] = True

    epochize: Epochize = field(
        metadata=key(
            Group(Epochize),
            "Epochs of a length of one's own; the next goes on where the last ended.",
            "epochize: {length: 100000, of: {path: ./coco}}",
        )
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children."""
        return (Part(of=self.epochize.of),)

    @property
    def names(self) -> Sequence[str]:
        """The name of the child in the tree of specs."""
        return ["of"]

    @property
    def label(self) -> str:
        """What the node is called in the tree that is shown to people."""
        return f"epochize, length {self.epochize.length}"

    def compile(
        self, children: Sequence[OrderSpec], shares: Sequence[Share], mode: Mode
    ) -> OrderSpec:
        """Return the child under its spec."""
        return EpochizeSpec(of=children[0], length=self.epochize.length)

    def plain(self, children: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the node as it is written in YAML."""
        return {self.kind: {"length": self.epochize.length, "of": children[0]}}

    def size(self, drawn: Sequence[Fraction | None]) -> Fraction | None:
        """Return the number of draws in one pass. None: not known."""
        return Fraction(self.epochize.length)
