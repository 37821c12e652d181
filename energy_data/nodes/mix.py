"""Mix: batches with an exact part of each child, or each of one child."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Any, Literal

from attrs import evolve, field, frozen

from energy_data.core import recipe
from energy_data.core.context import Context
from energy_data.core.cursor import Cursor
from energy_data.core.keys import key
from energy_data.core.node import EmptyGuard, Items, Node
from energy_data.core.recipe import FieldProblem, Yaml
from energy_data.core.rules import NUMBER, one_of
from energy_data.core.spec import Spec, order_children
from energy_data.errors import SpecError
from energy_data.nodes.many import MultiChildNode, MultiChildSpec, built, with_weights
from energy_data.nodes.references import LeafTable, OrderSpec
from energy_data.order.quota import QuotaChoice, WholeBatches
from energy_data.order.schedule import Clock
from energy_data.order.splits import integer_weights
from energy_data.order.tree import ChoiceOrder, Order
from energy_data.order.weighted import Place, WeightedChoice

MixedBy = Literal["samples", "batches"]


@frozen
class Mixed:
    """One child of a mix."""

    share_key = "weight"

    of: Spec
    weight: float = recipe.key(
        NUMBER,
        "Part of each batch, on any scale. 0: listed, never drawn.",
        "weight: 2.5",
        default=1.0,
    )

    def __attrs_post_init__(self) -> None:
        if not (isfinite(self.weight) and self.weight >= 0):
            raise SpecError(f"weight: must be a finite number >= 0, got {self.weight}.")


@frozen
class MixSpec(MultiChildSpec, OrderSpec):
    """Return batches that contain a share of every child, by weight.

    `by="samples"`: of each batch, a child has its quota rounded down or up, in turns, so that over
    batches proportions are exact. `by="batches"`: a batch is of one child, chosen by weight.

    Below reading it is the root of the order tree, a batch is what the clock of the run says, and
    what is drawn counts: where samples are left out afterwards, batches are filled from what is
    drawn next. Over streams give `batch_size`; then what comes through counts, and a mix ends with
    the first child that does.
    """

    kind = "mix"
    keeps_place = True
    is_finite = False
    only_root = True

    yaml = Yaml(
        about="Children of which every batch has its exact part; the outermost node of a split.",
        example="mix: {parts: [{path: ./coco, weight: 3}, {path: ./coyo}]}",
    )

    parts: tuple[Mixed, ...] = recipe.children(
        Mixed,
        "The children; one after another in validation.",
        "parts: [{path: ./coco, weight: 3}, {path: ./coyo}]",
    )
    by: MixedBy = recipe.key(
        one_of("samples", "batches"),
        "Each batch has its exact part of each child, or it is of one child, by weight.",
        "by: batches",
        default="samples",
    )
    batch_size: int | None = None
    weights: tuple[int, ...] = field(init=False, eq=False, repr=False)

    @weights.default
    def _integers(self) -> tuple[int, ...]:
        weights = [part.weight for part in self.parts]
        return tuple(integer_weights(weights)) if any(weights) else ()

    def check(self) -> Iterator[FieldProblem]:
        if not self.weights:
            yield "", "no child has weight > 0. Give at least one weight > 0."
        if self.by not in ("samples", "batches"):
            yield "by", f"by must be 'samples' or 'batches', got {self.by!r}."
        if {part.of.item_kind for part in self.parts} - {
            self.item_kind
        } or self.item_kind == "batches":
            yield "parts", "the children must all return references, or all return samples."
        if (self.batch_size is None) != (self.item_kind == "references"):
            yield (
                "",
                "give `batch_size` over streams, and omit it below reading, where it is that of "
                "the run.",
            )
        if self.batch_size is not None and self.batch_size < 1:
            yield "", f"batch_size must be >= 1, got {self.batch_size}."

    @property
    def children(self) -> Mapping[str, Spec]:
        return order_children([part.of for part in self.parts])

    @property
    def follows_run(self) -> bool:
        return True

    @property
    def size(self) -> Fraction:
        drawn = [part.of for part in self.parts if part.weight]
        return sum((of.size for of in drawn if isinstance(of, OrderSpec)), Fraction(0))

    def check_clock(self, clock: Clock | None) -> None:
        if clock is None:
            raise SpecError("mix: it has batches without end, so it is in no finite stream.")
        super().check_clock(clock)

    def canonical(self) -> MixSpec:
        return evolve(self, parts=with_weights(self.parts, self.weights))

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> Order:
        assert leaves.place is not None
        drawn = [number for number, part in enumerate(self.parts) if part.weight]
        choice = self.choice(context, leaves.clock.samples_per_microbatch)
        children = [
            of.order(
                context.under(str(number)),
                leaves.at(_below(choice, child, leaves.place)),
                endless=True,
            )
            for child, number in enumerate(drawn)
            if isinstance(of := self.parts[number].of, OrderSpec)
        ]
        return ChoiceOrder(children, choice)

    def choice(self, context: Context, size: int) -> QuotaChoice | WholeBatches:
        """Return the choice among the children that are drawn, in one lane."""
        weights = [weight for weight in self.weights if weight]
        mix_key = key(context.seed, "mix", *context.path)
        if self.by == "samples":
            return QuotaChoice(weights, size, key=mix_key, lane=context.lane, lanes=context.lanes)
        whole = WeightedChoice(weights, key=mix_key, lane=context.lane, lanes=context.lanes)
        return WholeBatches(whole, size)

    def build(self, context: Context) -> Node[Any]:
        if self.item_kind == "references":
            return OrderSpec.build(self, context)
        return MixNode(self, context)


@dataclass
class MixCursor(Cursor):
    draws: int = 0  # items returned


class MixNode(MultiChildNode[MixCursor]):
    """A mix of streams: the items of whole batches, one after another."""

    def __init__(self, spec: MixSpec, context: Context) -> None:
        drawn = {name: of for name, of in spec.children.items() if spec.parts[int(name)].weight}
        super().__init__(MixCursor(), built(drawn, context))
        assert spec.batch_size is not None
        self.batch_size, self.numbers = spec.batch_size, [int(name) for name in drawn]
        self.choice = spec.choice(context, spec.batch_size)
        self._plan: tuple[int, Sequence[int]] = 0, ()

    def draw(self, count: int) -> Items:
        at, values, refs = self.cursor, list[Any](), list[Any]()
        guard = EmptyGuard()
        while len(values) < count:
            try:
                drawn = self.draw_from(self._child(at.draws), 1)
            except StopIteration:
                if not values:
                    raise
                break
            at.draws += len(drawn.values)
            values += drawn.values
            refs += drawn.refs
            guard.count(drawn.values)
        return Items(values, refs)

    def _child(self, draw: int) -> int:
        start, planned = self._plan
        if not start <= draw < start + len(planned):
            start = draw - draw % self.batch_size
            planned = [self.numbers[n] for n in self.choice.choose(start, self.batch_size)]
            self._plan = start, planned
        return planned[draw - start]


def _below(choice: QuotaChoice | WholeBatches, child: int, place: Place) -> Place:
    """Return which draw of a child a place of the run is."""
    return lambda samples: int(choice.counts_before(place(samples))[child])
