"""Blend: several children as one, in given proportions, exact to the sample in every lane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Any, Literal

from attrs import evolve, field, frozen

from energy_data.core import recipe
from energy_data.core.context import Context
from energy_data.core.cursor import Cursor, Problem, shorten
from energy_data.core.keys import key
from energy_data.core.node import EmptyGuard, Items, Node
from energy_data.core.recipe import FieldProblem, Yaml
from energy_data.core.rules import one_of
from energy_data.core.spec import Spec, order_children
from energy_data.errors import SpecError
from energy_data.nodes.many import MultiChildNode, MultiChildSpec, built, with_weights
from energy_data.nodes.references import LeafTable, OrderSpec
from energy_data.order.schedule import (
    Clock,
    Schedule,
    Weight,
    check_weights,
    stretches,
)
from energy_data.order.splits import integer_weights
from energy_data.order.tree import ChoiceOrder, ExhaustingOrder, Order
from energy_data.order.weight_rule import WEIGHT
from energy_data.order.weighted import ExhaustingChoice, Place, ScheduledChoice, WeightedChoice

PLANNED_ITEMS = 256  # choices computed ahead


@frozen
class Part:
    """One child of a blend."""

    share_key = "weight"

    of: Spec
    weight: Weight | Schedule = recipe.key(
        WEIGHT,
        "Share among its siblings, on any scale, or how it changes. 0: listed, never drawn.",
        "weight: 2.5",
        default=1.0,
    )

    def __attrs_post_init__(self) -> None:
        if isinstance(self.weight, Schedule):
            return
        if not (isfinite(self.weight) and self.weight >= 0):
            raise SpecError(f"weight: must be a finite number >= 0, got {self.weight}.")


@frozen
class BlendSpec(MultiChildSpec, OrderSpec):
    """Draw from each child in proportion to its weight.

    A child that ends leaves its share to the others; the blend ends with its last child. Weights
    that change need a stream without end below reading, and a root that has a clock.
    """

    kind = "blend"
    keeps_place = True
    is_finite = False

    yaml = Yaml()

    parts: tuple[Part, ...] = recipe.children(
        Part,
        "Children drawn in proportion to their `weight`; one after another in validation.",
        "blend: [{path: ./coco, weight: 2}, {path: ./coyo}]",
        name="blend",
    )
    weight_unit: Literal["samples", "tokens"] = recipe.key(
        one_of("samples", "tokens"),
        "What weights are shares of: of tokens, each is divided by the mean length of its child.",
        "weight_unit: tokens",
        default="samples",
    )
    # Exact, or to 2**-32; empty where weights change.
    weights: tuple[int, ...] = field(init=False, eq=False, repr=False)

    @weights.default
    def _integers(self) -> tuple[int, ...]:
        weights = [part.weight for part in self.parts]
        constant = [weight for weight in weights if not isinstance(weight, Schedule)]
        if len(constant) < len(weights):
            return ()
        return tuple(integer_weights(constant)) if any(constant) else ()

    def check(self) -> Iterator[FieldProblem]:
        weights = [part.weight for part in self.parts]
        changing = [n for n, weight in enumerate(weights) if isinstance(weight, Schedule)]
        if not any(weights):
            yield "blend", "no child has weight > 0. Give at least one weight > 0."
        elif changing:
            try:
                check_weights(weights)
            except ValueError as error:
                yield f"blend[{changing[0]}].weight", f"{error}."
        if len({part.of.item_kind for part in self.parts}) > 1:
            yield "blend", "the children return different kinds of items (references and samples)."
        elif changing and self.item_kind != "references":
            problem = "weights that change are for blends below reading. Put the blend there."
            yield "blend", problem

    @property
    def follows_run(self) -> bool:
        return not self.weights

    def check_clock(self, clock: Clock | None) -> None:
        for part in self.parts:
            unit = part.weight.unit if isinstance(part.weight, Schedule) else None
            if unit and clock is None:
                raise SpecError(
                    "blend: its weights change over the run, so it must go on without end: not "
                    "under a concat, a repeat or a blend_epochized, and not in a finite stream."
                )
            if unit and clock is not None and not clock.knows(unit):
                fact = {"steps": "microbatches_per_step", "tokens": "tokens_per_sample"}[unit]
                raise SpecError(f"blend: its weights follow {unit}. Give `{fact}` of the run.")
        super().check_clock(clock)

    @property
    def children(self) -> Mapping[str, Spec]:
        return order_children([part.of for part in self.parts])

    @property
    def size(self) -> Fraction:
        drawn = [part.of for part in self.parts if part.weight]
        return sum((of.size for of in drawn if isinstance(of, OrderSpec)), Fraction(0))

    def canonical(self) -> BlendSpec:
        if not self.weights:
            return self
        return evolve(self, parts=with_weights(self.parts, self.weights))

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> Order:
        drawn = [number for number, part in enumerate(self.parts) if part.weight]
        if endless:
            choice = self._choice(context, leaves, drawn)
            places = [_below(choice, number, leaves.place) for number in range(len(drawn))]
        else:
            places = [None] * len(drawn)
        children = [
            of.order(
                context.under(str(number)),
                leaves.at(place) if of.children else leaves,
                endless=endless,
            )
            for number, place in zip(drawn, places, strict=True)
            if isinstance(of := self.parts[number].of, OrderSpec)
        ]
        if endless:
            return ChoiceOrder(children, choice)
        weights, draw = [weight for weight in self.weights if weight], _draw(context)
        return ExhaustingOrder(children, lambda counts: ExhaustingChoice(weights, counts, **draw))

    def _choice(
        self, context: Context, leaves: LeafTable, drawn: Sequence[int]
    ) -> WeightedChoice | ScheduledChoice:
        if self.weights:
            weights = tuple(self.weights[number] for number in drawn)
            draw = _draw(context)
            first = context.shared(
                ("choice", weights, draw["key"]), lambda: WeightedChoice(weights, **draw)
            )
            return first.in_lane(context.lane)
        assert leaves.place is not None
        curves = tuple(self.parts[number].weight for number in drawn)
        cut = context.shared(
            ("stretches", curves, leaves.clock),
            lambda: stretches(curves, leaves.clock, context.lanes),
        )
        return ScheduledChoice(cut, leaves.place, **_draw(context))

    def build(self, context: Context) -> Node[Any]:
        if self.item_kind == "references":
            return OrderSpec.build(self, context)
        return BlendNode(self, context)


@dataclass
class BlendCursor(Cursor):
    draws: int = 0  # items returned since a child last ended
    ended: tuple[str, ...] = ()  # children that have ended


class BlendNode(MultiChildNode[BlendCursor]):
    """A blend of streams: one item from one child at a time."""

    def __init__(self, spec: BlendSpec, context: Context) -> None:
        drawn = {name: of for name, of in spec.children.items() if spec.parts[int(name)].weight}
        super().__init__(BlendCursor(), built(drawn, context))
        weights = [weight for weight in spec.weights if weight]
        self.weights = dict(zip(drawn, weights, strict=True))
        self.context = context
        self._plan: tuple[tuple[str, ...], int, Sequence[str]] = ((), 0, ())

    def faults(self, at: BlendCursor) -> Iterator[Problem]:
        if set(at.ended) - self.children.keys() or len(set(at.ended)) < len(at.ended):
            yield "ended", f"must be some of {', '.join(self.children)}, got {shorten(at.ended)}"

    def draw(self, count: int) -> Items:
        at, values, refs, guard = self.cursor, list[Any](), list[Any](), EmptyGuard()
        while len(values) < count and len(at.ended) < len(self.children):
            name = self._choose(at.ended, at.draws)
            try:
                drawn = self.draw_from(int(name), 1)
            except StopIteration:
                at.ended, at.draws = (*at.ended, name), 0
                continue
            at.draws += 1
            values += drawn.values
            refs += drawn.refs
            guard.count(drawn.values)
        if not values:
            raise StopIteration
        return Items(values, refs)

    def _choose(self, ended: tuple[str, ...], draw: int) -> str:
        planned, start, names = self._plan
        if planned != ended or not start <= draw < start + len(names):
            living = [name for name in self.children if name not in ended]
            choice = WeightedChoice(
                [self.weights[name] for name in living],
                key=_key(self.context),
                lane=self.context.lane,
                lanes=self.context.lanes,
            )
            names = [living[number] for number in choice.choose(draw, PLANNED_ITEMS)]
            start = draw
            self._plan = ended, start, names
        return names[draw - start]


def _key(context: Context) -> int:
    return key(context.seed, "blend", *context.path)


def _draw(context: Context) -> dict[str, int]:
    """Return the key and the lane of a choice."""
    return {"key": _key(context), "lane": context.lane, "lanes": context.lanes}


def _below(
    choice: WeightedChoice | ScheduledChoice, child: int, place: Place | None
) -> Place | None:
    """Return which draw of a child a place of the run is."""
    if place is None:
        return None
    return lambda samples: int(choice.counts_before(place(samples))[child])
