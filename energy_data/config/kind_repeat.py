"""`repeat`: several passes over one child."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar

from attrs import field, frozen

from energy_data.config.definitions import Definition, Group, Mode, Node, Part, Share, key
from energy_data.config.rules import COUNT
from energy_data.nodes.references import OrderSpec
from energy_data.nodes.repeat import RepeatSpec


@frozen(kw_only=True, eq=False)
class Repeat:
    """What stands below `repeat`."""

    times: int = field(metadata=key(COUNT, "Number of passes.", "times: 3"))
    of: Definition = field(metadata=key(Node(), "What is played again.", "of: {path: ./coco}"))


@frozen(kw_only=True, eq=False)
class RepeatDefinition(Definition):
    """Several passes over one child."""

    kind: ClassVar[str] = "repeat"

    repeat: Repeat = field(
        metadata=key(
            Group(Repeat),
            "Several passes over one child, each its next epoch.",
            "repeat: {times: 3, of: {path: ./coco}}",
        )
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children."""
        return (Part(of=self.repeat.of),)

    @property
    def names(self) -> Sequence[str]:
        """The name of the child in the tree of specs."""
        return ["of"]

    @property
    def label(self) -> str:
        """What the node is called in the tree that is shown to people."""
        return f"repeat, {self.repeat.times} times"

    def compile(
        self, children: Sequence[OrderSpec], shares: Sequence[Share], mode: Mode
    ) -> OrderSpec:
        """Return the child under its spec."""
        return RepeatSpec(of=children[0], times=self.repeat.times)

    def plain(self, children: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the node as it is written in YAML."""
        return {self.kind: {"times": self.repeat.times, "of": children[0]}}

    def size(self, drawn: Sequence[Fraction | None]) -> Fraction | None:
        """Return the number of draws in one pass. None: not known."""
        size = super().size(drawn)
        return None if size is None else size * self.repeat.times
