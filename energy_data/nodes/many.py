"""Base of kinds with several children, of which each item comes from one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor
from energy_data.core.keys import key
from energy_data.core.node import Change, ItemRef, Items, Node
from energy_data.core.recipe import FieldProblem, keys_of, share_of
from energy_data.core.spec import Spec
from energy_data.nodes.leaf import LeafTable
from energy_data.nodes.references import OrderSpec
from energy_data.order.tree import Choice, Order

C = TypeVar("C", bound=Cursor)


class MultiChildSpec(OrderSpec):
    """A spec over children that all return references, or all items of the same kind.

    The names of children are their numbers.
    """

    parts: tuple[Any, ...]  # of each child: its spec, or what has it as `of`, and a share

    def check(self) -> Iterator[FieldProblem]:
        (name,) = (one.name for one in keys_of(type(self)).values() if one.attribute == "parts")
        if not self.parts:
            yield name, "it has no children. List at least one."
        elif not self.drawn:
            share = self.parts[0].share_key
            yield name, f"no child has {share} > 0. Give at least one {share} > 0."
        if len({child.item_kind for child in self.children.values()}) > 1:
            yield name, "the children return different kinds of items (references and samples)."

    @property
    def drawn(self) -> Mapping[str, Spec]:
        """The children without those whose weight, or repetitions, is 0."""
        holders = self.holders
        return {name: of for name, of in self.children.items() if share_of(holders[name]) != 0}

    def replay_blocker(self) -> str | None:
        blockers = (child.replay_blocker() for child in self.children.values())
        return next(filter(None, blockers), None)

    @property
    def size(self) -> Fraction:
        drawn = self.drawn.values()
        return sum((of.size for of in drawn if isinstance(of, OrderSpec)), Fraction(0))

    def orders(
        self, context: Context, leaves: LeafTable, choice: Choice | None = None
    ) -> list[Order]:
        """Return the orders of the children that are drawn, in one lane.

        choice: Which of them a draw goes to; they never end. None: they play in passes.
        """
        found: list[Order] = []
        for number, (name, of) in enumerate(self.drawn.items()):
            assert isinstance(of, OrderSpec)
            # The order of a leaf does not depend on places of the run.
            table = leaves.below(choice, number) if of.children else leaves
            found.append(of.order(context.under(name), table, endless=choice is not None))
        return found

    def lane_of_choice(self, context: Context) -> dict[str, int]:
        """Return the key and the lane of a choice among the children."""
        own = key(context.seed, self.kind, *context.path)
        return {"key": own, "lane": context.lane, "lanes": context.lanes}


class MultiChildNode(Node[C]):
    """A node over several children. A reference begins with the number of the child."""

    def __init__(self, start: C, spec: MultiChildSpec, context: Context) -> None:
        drawn = spec.drawn.items()
        super().__init__(start, {name: of.build(context.under(name)) for name, of in drawn})

    def draw_from(self, number: int, count: int) -> Items:
        """Return the next items of a child. StopIteration at its end."""
        values, refs = self.children[str(number)].draw(count)
        return Items(values, [None if ref is None else (number, *ref) for ref in refs])

    def replay(self, refs: Sequence[ItemRef]) -> list[Any]:
        found: dict[int, Any] = {}
        for number in dict.fromkeys(ref[0] for ref in refs):
            places = [place for place, ref in enumerate(refs) if ref[0] == number]
            items = self.children[str(number)].replay([refs[place][1:] for place in places])
            found.update(zip(places, items, strict=True))
        return [found[place] for place in range(len(refs))]

    def remap(self, refs: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        found: list[ItemRef | None] = []
        for number, *below in refs:
            child = self.children.get(str(number))
            ref = child.remap([tuple(below)], change)[0] if child else None
            found.append(None if ref is None else (number, *ref))
        return found
