"""Blends: several children as one, in given proportions, exact to the sample in every lane.

`blend` keeps weights along each lane, `mix` in every batch, and `blend_epochized` draws each child
so many times per epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import isfinite
from typing import Any, Literal

import numpy as np
from attrs import evolve, field, frozen

from energy_data.core import recipe
from energy_data.core.context import Context
from energy_data.core.cursor import Cursor, Problem, shorten
from energy_data.core.keys import key
from energy_data.core.node import EmptyGuard, Items
from energy_data.core.recipe import NUMBER, FieldProblem, Yaml, number, one_of
from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.nodes.leaf import LeafTable
from energy_data.nodes.many import MultiChildNode, MultiChildSpec
from energy_data.nodes.references import OrderSpec, parts_of
from energy_data.order.grains import Grains
from energy_data.order.quota import EpochizedChoice, QuotaChoice, WholeBatches
from energy_data.order.schedule import WEIGHT, Schedule, Unit, Weight, check_weights, stretches
from energy_data.order.splits import exact_fraction, integer_weights
from energy_data.order.tree import ChoiceOrder, LeafOrder, Order, PassOrder
from energy_data.order.weighted import ExhaustingChoice, ScheduledChoice, WeightedChoice

PLANNED_ITEMS = 256  # choices computed ahead
MAX_REPETITIONS = 1e9


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


class WeightedSpec(MultiChildSpec):
    """A spec whose children have weights."""

    parts: tuple[Part, ...]

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """The weights of the children, exact or to 2**-32; empty where they change."""
        weights = [part.weight for part in self.parts]
        constant = [weight for weight in weights if not isinstance(weight, Schedule)]
        return tuple(integer_weights(constant)) if len(constant) == len(weights) else ()

    @property
    def drawn_weights(self) -> tuple[int, ...]:
        """The weights of the children that are drawn."""
        return tuple(weight for weight in self.weights if weight)

    @property
    def shares(self) -> list[Fraction]:
        return [Fraction(weight) for weight in self.weights]

    def to_dict(
        self, child: Callable[[Spec], Any] | None = None, *, defaults: bool = False
    ) -> list[Any]:
        kind, data = super().to_dict(child, defaults=defaults)
        for part, weight in zip(data["parts"], self.weights, strict=False):
            part["weight"] = weight  # on any scale, the same stream
        return [kind, data]


@frozen
class BlendSpec(WeightedSpec):
    """Draw from each child in proportion to its weight.

    A child that ends leaves its share to the others; the blend ends with its last child. Weights
    that change need a stream without end below reading, and a root that has a clock.
    """

    kind = "blend"
    keeps_place = True
    is_finite = False

    parts: tuple[Part, ...] = recipe.children(
        Part,
        "Children drawn in proportion to their `weight`; one after another in validation.",
        "blend: [{path: ./coco, weight: 2}, {path: ./coyo}]",
        name="blend",
    )
    weight_unit: Literal["samples", "tokens"] = recipe.key(
        one_of(
            "samples",
            "tokens",
            advice="Give another size as `tokens_per_sample`, or by a `@sample_size_metric` that "
            "is called tokens.",
        ),
        "What weights are shares of: of tokens, each is divided by the mean length of its child. "
        "Or: `blend_weight_unit`.",
        "weight_unit: tokens",
        default="samples",
        alias="blend_weight_unit",
    )

    @property
    def own_units(self) -> frozenset[Unit]:
        schedules = (part.weight for part in self.parts if isinstance(part.weight, Schedule))
        return frozenset(schedule.unit for schedule in schedules)

    def check(self) -> Iterator[FieldProblem]:
        yield from super().check()
        if not self.own_units:
            return
        try:
            check_weights([part.weight for part in self.parts])
        except ValueError as error:
            changing = [isinstance(part.weight, Schedule) for part in self.parts]
            yield f"blend[{changing.index(True)}].weight", f"{error}."
        if self.item_kind != "references":
            problem = "weights that change are for blends below reading. Put the blend there."
            yield "blend", problem

    @property
    def shares(self) -> list[Fraction]:
        if self.own_units:
            raise SpecError(
                "weights are of tokens, and how long the samples of a blend are changes with its "
                "own weights. Give its children lengths that are equal, or weights that stay."
            )
        return super().shares

    def parts_of_batch(self, *, endless: bool) -> Sequence[Fraction]:
        if not endless or self.own_units:  # in passes, children have turns
            return [Fraction(0)] * len(self.parts)
        return parts_of(self.shares)

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> Order:
        if endless:
            choice = self._choice(context, leaves)
            return ChoiceOrder(self.orders(context, leaves, choice), choice)
        weights, lane = self.drawn_weights, self.lane_of_choice(context)
        return PassOrder(
            self.orders(context, leaves), lambda counts: ExhaustingChoice(weights, counts, **lane)
        )

    def _choice(self, context: Context, leaves: LeafTable) -> WeightedChoice | ScheduledChoice:
        lane = self.lane_of_choice(context)
        if weights := self.drawn_weights:
            first = context.shared(
                ("choice", weights, lane["key"]), lambda: WeightedChoice(weights, **lane)
            )
            return first.in_lane(context.lane)
        assert leaves.place is not None
        curves = tuple(part.weight for part in self.parts if part.weight)
        cut = context.shared(
            ("stretches", curves, leaves.clock),
            lambda: stretches(curves, leaves.clock, context.lanes),
        )
        return ScheduledChoice(cut, leaves.place, **lane)

    def stream(self, context: Context) -> BlendNode:
        return BlendNode(self, context)


@dataclass
class BlendCursor(Cursor):
    draws: int = 0  # items returned since a child last ended
    ended: tuple[str, ...] = ()  # children that have ended


class BlendNode(MultiChildNode[BlendCursor]):
    """A blend of streams: one item from one child at a time."""

    def __init__(self, spec: BlendSpec, context: Context) -> None:
        super().__init__(BlendCursor(), spec, context)
        self.weights = dict(zip(self.children, spec.drawn_weights, strict=True))
        self.lane = spec.lane_of_choice(context)
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
            choice = WeightedChoice([self.weights[name] for name in living], **self.lane)
            names = [living[number] for number in choice.choose(draw, PLANNED_ITEMS)]
            start = draw
            self._plan = ended, start, names
        return names[draw - start]


def blend_by_tokens(parts: Sequence[Part]) -> BlendSpec:
    """Return a blend whose weights are of tokens: each is divided by the mean length of its child.

    With lengths that are right, each child has its part of all tokens, as exactly as a blend keeps
    its parts of samples. A leaf's length is the declared one, or that of its source.

    Raises:
        SpecError: If a length is not known, or changes over the run.
    """
    return BlendSpec(tuple(map(_per_token, parts)))


def _per_token(part: Part) -> Part:
    weight, of = part.weight, part.of
    if not (weight and isinstance(of, OrderSpec)):
        return part
    if isinstance(weight, Schedule):
        return evolve(part, weight=evolve(weight, per=weight.per * of.mean_tokens))
    return evolve(part, weight=exact_fraction(weight) / of.mean_tokens)


@frozen
class Mixed(Part):
    """One child of a mix."""

    weight: float = recipe.key(
        NUMBER,
        "Part of each batch, on any scale. 0: listed, never drawn.",
        "weight: 2.5",
        default=1.0,
    )


@frozen
class MixSpec(WeightedSpec):
    """Return batches that contain a share of every child, by weight.

    `by="samples"`: of each batch, a child has its quota rounded down or up, in turns, so that over
    batches proportions are exact. `by="batches"`: a batch is of one child, chosen by weight.

    It is the root of an order tree; its clock has the size of a batch. Samples count when they are
    drawn: one that is skipped later is replaced by the next draw.
    """

    kind = "mix"
    keeps_place = True
    is_finite = False
    only_root = True
    own_units = frozenset[Unit](["samples"])

    yaml = Yaml(
        about="Children of which every batch has its exact part; the outermost node of a split.",
        example="mix: {parts: [{path: ./coco, weight: 3}, {path: ./coyo}]}",
    )

    parts: tuple[Mixed, ...] = recipe.children(
        Mixed,
        "The children; one after another in validation.",
        "parts: [{path: ./coco, weight: 3}, {path: ./coyo}]",
    )
    by: Literal["samples", "batches"] = recipe.key(
        one_of("samples", "batches"),
        "Each batch has its exact part of each child, or it is of one child, by weight.",
        "by: batches",
        default="samples",
    )

    def check(self) -> Iterator[FieldProblem]:
        yield from super().check()
        if self.by not in ("samples", "batches"):
            yield "by", f"by must be 'samples' or 'batches', got {self.by!r}."
        if self.item_kind != "references":
            yield "parts", "a mix is for children below reading. Over streams, use a blend."

    def parts_of_batch(self, *, endless: bool) -> Sequence[Fraction]:
        return parts_of(self.shares) if self.by == "samples" else [Fraction(1)] * len(self.parts)

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> Order:
        size, lane = leaves.clock.samples_per_microbatch, self.lane_of_choice(context)
        choice: QuotaChoice | WholeBatches
        if self.by == "samples":
            choice = QuotaChoice(self.drawn_weights, size, **lane)
        else:
            choice = WholeBatches(WeightedChoice(self.drawn_weights, **lane), size)
        return ChoiceOrder(self.orders(context, leaves, choice), choice)


@frozen
class Repeated:
    """One child of an epochized blend."""

    share_key = "repetitions"

    of: OrderSpec
    repetitions: Fraction = field(
        default=Fraction(1),
        converter=exact_fraction,
        metadata=recipe.declare(
            number(MAX_REPETITIONS),
            "How often each of its samples comes per epoch; fractions are exact over epochs.",
            "repetitions: 1.5",
        ),
    )

    def __attrs_post_init__(self) -> None:
        if self.repetitions < 0:
            raise SpecError(f"repetitions: must be >= 0, got {self.repetitions}.")

    @property
    def size(self) -> Fraction:
        """The number of its draws per epoch, over all lanes."""
        return self.of.size * self.repetitions


@frozen
class BlendEpochizedSpec(MultiChildSpec):
    """Draw each child `repetitions` times per epoch, evenly spread over the epoch.

    Counts are exact: before epoch e, a child of n samples was drawn floor(e * repetitions * n)
    times over all lanes.
    """

    kind = "blend_epochized"
    needs_sizes = True

    parts: tuple[Repeated, ...] = recipe.children(
        Repeated,
        "Children drawn `repetitions` times per epoch; once, one after another, in validation.",
        "blend_epochized: [{path: ./coco, repetitions: 2}, {path: ./coyo}]",
        name="blend_epochized",
    )

    @property
    def shares(self) -> list[Fraction]:
        return [part.size for part in self.parts]

    @property
    def size(self) -> Fraction:
        return sum(self.shares, Fraction(0))

    def parts_of_batch(self, *, endless: bool) -> Sequence[Fraction]:
        return parts_of(self.shares)

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> Order:
        children, lane = self.orders(context, leaves), self.lane_of_choice(context)
        sizes = [size for size in self.shares if size]
        dealt = [
            (leaves.shares.grain_sizes[child.leaf], leaves.keys[child.leaf])
            if isinstance(child, LeafOrder)
            else (Fraction(0), key(lane["key"], int(name)))
            for name, child in zip(self.drawn, children, strict=True)
        ]
        grain_sizes, keys = zip(*dealt, strict=True)
        grains = Grains(
            grain_sizes, np.array(keys, np.uint64), lane=context.lane, lanes=context.lanes
        )
        return ChoiceOrder(children, EpochizedChoice(sizes, grains=grains, **lane))
