"""BlendEpochized: several children as one, each a given number of times per epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from attrs import field, frozen

from energy_data.core import recipe
from energy_data.core.context import Context
from energy_data.core.keys import key
from energy_data.core.recipe import FieldProblem, Yaml
from energy_data.core.rules import number
from energy_data.core.spec import Spec, order_children
from energy_data.errors import SpecError
from energy_data.nodes.references import LeafTable, OrderSpec
from energy_data.order.epochized import EpochizedChoice
from energy_data.order.permutation import permute
from energy_data.order.tree import ChoiceOrder, LeafOrder, Order

MAX_REPETITIONS = 1e9


def _exact(times: float | str | Fraction) -> Fraction:
    return Fraction(str(times))  # 0.1 means a tenth


@frozen
class Repeated:
    """One child of an epochized blend."""

    share_key = "repetitions"

    of: OrderSpec
    repetitions: Fraction = field(
        default=Fraction(1),
        converter=_exact,
        metadata=recipe.declare(
            number(MAX_REPETITIONS),
            "How often each of its samples comes per epoch; fractions are exact over epochs.",
            "repetitions: 1.5",
        ),
    )

    def __attrs_post_init__(self) -> None:
        if self.repetitions < 0:
            raise SpecError(f"repetitions: must be >= 0, got {self.repetitions}.")


@frozen
class BlendEpochizedSpec(OrderSpec):
    """Draw each child `repetitions` times per epoch, evenly spread over the epoch.

    Counts are exact: before epoch e, a child of n samples was drawn floor(e * repetitions * n)
    times over all lanes.
    """

    kind = "blend_epochized"
    needs_sizes = True

    yaml = Yaml()

    parts: tuple[Repeated, ...] = recipe.children(
        Repeated,
        "Children drawn `repetitions` times per epoch; once, one after another, in validation.",
        "blend_epochized: [{path: ./coco, repetitions: 2}, {path: ./coyo}]",
        name="blend_epochized",
    )

    def check(self) -> Iterator[FieldProblem]:
        if not any(part.repetitions for part in self.parts):
            problem = "no child has repetitions > 0. Give at least one repetitions > 0."
            yield "blend_epochized", problem

    @property
    def children(self) -> Mapping[str, Spec]:
        return order_children([part.of for part in self.parts])

    @property
    def size(self) -> Fraction:
        return sum((part.of.size * part.repetitions for part in self.parts), Fraction(0))

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> Order:
        drawn = [number for number, part in enumerate(self.parts) if part.repetitions]
        children = [
            self.parts[number].of.order(context.under(str(number)), leaves, endless=False)
            for number in drawn
        ]
        blend_key = key(context.seed, "blend_epochized", *context.path)
        choice = EpochizedChoice(
            [self.parts[number].of.size * self.parts[number].repetitions for number in drawn],
            key=blend_key,
            lane=context.lane,
            lanes=context.lanes,
            lane_positions=[
                leaves.shares.position(child.leaf)
                if isinstance(child, LeafOrder)
                else int(permute(context.lane, context.lanes, key(blend_key, number)))
                for number, child in zip(drawn, children, strict=True)
            ],
        )
        return ChoiceOrder(children, choice)
