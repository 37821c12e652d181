"""`blend_epochized`: children mixed by repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

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
from energy_data.config.rules import number
from energy_data.nodes.blend_epochized import BlendEpochizedSpec, Repeated
from energy_data.nodes.concat import ConcatSpec
from energy_data.nodes.references import OrderSpec

MAX_REPETITIONS = 1e9


@frozen(kw_only=True, eq=False)
class RepeatedPart(Part):
    """A child of `blend_epochized`."""

    share_key: ClassVar[str | None] = "repetitions"

    repetitions: float = field(
        default=1,
        metadata=key(
            number(MAX_REPETITIONS),
            "How often each of its samples comes per epoch; fractions are exact over epochs.",
            "repetitions: 1.5",
        ),
    )


@frozen(kw_only=True, eq=False)
class BlendEpochizedDefinition(Definition):
    """Children mixed by repetitions."""

    kind: ClassVar[str] = "blend_epochized"

    blend_epochized: tuple[RepeatedPart, ...] = field(
        metadata=key(
            Nodes(RepeatedPart),
            "Children drawn `repetitions` times per epoch; once, one after another, in validation.",
            "blend_epochized: [{path: ./coco, repetitions: 2}, {path: ./coyo}]",
        )
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children."""
        return self.blend_epochized

    def check(self, faults: Diagnostics) -> None:
        """Note it if there is nothing to draw."""
        check_some_share(self, faults)

    def compile(
        self, children: Sequence[OrderSpec], shares: Sequence[Share], mode: Mode
    ) -> OrderSpec:
        """Return a blend in training, else the children one after another."""
        if mode == "val":
            return ConcatSpec(tuple(children))
        pairs = zip(children, shares, strict=True)
        return BlendEpochizedSpec(tuple(Repeated(spec, times) for spec, times in pairs))

    def drawn(self, share: Share | None, size: Fraction | None, mode: Mode) -> Fraction | None:
        """Return how many draws of a child of this size are in one pass. None: not known."""
        if not share or size is None or mode == "val":
            return super().drawn(share, size, mode)
        return size * Fraction(str(share))
