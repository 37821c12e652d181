"""Base of kinds with several children, of which each item comes from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from attrs import evolve

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor
from energy_data.core.node import Change, ItemRef, Items, Node
from energy_data.core.spec import ItemKind, Spec

C = TypeVar("C", bound=Cursor)
P = TypeVar("P")


class MultiChildSpec(Spec):
    """A spec over children that all return items of the same kind. Their names are numbers."""

    @property
    def item_kind(self) -> ItemKind:
        return self.children["0"].item_kind

    def replay_blocker(self) -> str | None:
        return next(
            filter(None, (child.replay_blocker() for child in self.children.values())), None
        )


class MultiChildNode(Node[C]):
    """A node over several children. A reference begins with the number of the child."""

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


def with_weights(parts: Sequence[P], weights: Sequence[int]) -> tuple[P, ...]:
    """Return the parts of a spec with integer weights, which do not depend on their scale."""
    pairs = zip(parts, weights, strict=True)
    return tuple(evolve(part, weight=weight) for part, weight in pairs)  # type: ignore[misc]  # attrs


def built(children: Mapping[str, Spec], context: Context) -> dict[str, Node[Any]]:
    """Return the nodes of children by name, for one lane."""
    return {name: child.build(context.under(name)) for name, child in children.items()}
