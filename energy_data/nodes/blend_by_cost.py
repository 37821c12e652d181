"""BlendByCost: several streams as one, in given proportions of what their samples cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from attrs import evolve, field, frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor, Problem, shorten
from energy_data.core.keys import key
from energy_data.core.node import EmptyGuard, Items
from energy_data.core.spec import Spec, order_children
from energy_data.errors import DataError, SpecError
from energy_data.nodes.many import MultiChildNode, MultiChildSpec, built, with_weights
from energy_data.order.splits import integer_weights
from energy_data.order.weighted import WeightedChoice


@frozen
class Costed:
    """One child of a blend by cost."""

    of: Spec
    weight: float = 1.0  # share of the cost; relative, any scale, > 0


@frozen
class BlendByCostSpec(MultiChildSpec):
    """Draw from streams so that the costs of their samples, as measured, keep the weights.

    Use it for lengths that are not known before a sample is read: `cost` may count tokens. The next
    sample is drawn from the child with the least cost so far relative to its weight, so a lane is
    never off by more than the cost of a few samples. The cost of each child is part of the state.
    When a child ends, the others share its weight. If mean lengths are known, weights by tokens
    below reading (`energy_data.nodes.token_weights`) need no state.
    """

    kind = "blend_by_cost"
    parts: tuple[Costed, ...]
    cost: Callable[[Any], int]  # of a sample; an int >= 1 that depends on the sample alone
    weights: tuple[int, ...] = field(init=False, eq=False, repr=False)

    @weights.default
    def _integers(self) -> tuple[int, ...]:
        try:
            weights = integer_weights([part.weight for part in self.parts])
        except ValueError as error:
            raise SpecError(f"blend_by_cost: {error}.") from error
        if not all(weights):
            raise SpecError("blend_by_cost: a child has weight 0. Take it out.")
        return tuple(weights)

    def __attrs_post_init__(self) -> None:
        if {part.of.item_kind for part in self.parts} != {"samples"}:
            raise SpecError("blend_by_cost: its children must be streams of samples.")

    @property
    def children(self) -> Mapping[str, Spec]:
        return order_children([part.of for part in self.parts])

    def canonical(self) -> BlendByCostSpec:
        return evolve(self, parts=with_weights(self.parts, self.weights))

    def build(self, context: Context) -> BlendByCostNode:
        return BlendByCostNode(self, context)


@dataclass
class BlendByCostCursor(Cursor):
    cost: tuple[int, ...] = ()  # of the samples that each child has returned
    ended: tuple[int, ...] = ()  # children that have ended


class BlendByCostNode(MultiChildNode[BlendByCostCursor]):
    """A blend by cost in one lane."""

    def __init__(self, spec: BlendByCostSpec, context: Context) -> None:
        start = BlendByCostCursor(cost=(0,) * len(spec.parts))
        super().__init__(start, built(spec.children, context))
        self.spec, self.context = spec, context

    def faults(self, at: BlendByCostCursor) -> Iterator[Problem]:
        count = len(self.children)
        if len(at.cost) != count:
            yield "cost", f"must be of {count} children, got {shorten(at.cost)}"
        if set(at.ended) - set(range(count)) or len(set(at.ended)) < len(at.ended):
            yield "ended", f"must be some of 0 to {count - 1}, got {shorten(at.ended)}"

    def draw(self, count: int) -> Items:
        at, values, refs, guard = self.cursor, list[Any](), list[Any](), EmptyGuard()
        while len(values) < count and len(at.ended) < len(self.children):
            number = self._cheapest()
            try:
                drawn = self.draw_from(number, 1)
            except StopIteration:
                at.ended = (*at.ended, number)
                continue
            for sample in drawn.values:
                self._count(number, self.spec.cost(sample))
            values += drawn.values
            refs += drawn.refs
            guard.count(drawn.values)
        if not values:
            raise StopIteration
        return Items(values, refs)

    def _cheapest(self) -> int:
        """Return the child with the least cost for its weight; the first is drawn by weight."""
        at, weights = self.cursor, self.spec.weights
        if not any(at.cost):
            facts = {"lane": self.context.lane, "lanes": self.context.lanes}
            place = key(self.context.seed, "blend_by_cost", *self.context.path)
            living = [0 if n in at.ended else weight for n, weight in enumerate(weights)]
            return int(WeightedChoice(living, key=place, **facts).choose(0, 1)[0])
        living = [number for number in range(len(weights)) if number not in at.ended]
        return min(living, key=lambda number: Fraction(at.cost[number], weights[number]))

    def _count(self, number: int, cost: int) -> None:
        if type(cost) is not int or cost < 1:
            raise DataError(f"blend_by_cost: a cost must be an int >= 1, got {cost!r}.")
        at = self.cursor
        at.cost = tuple(c + cost if n == number else c for n, c in enumerate(at.cost))
