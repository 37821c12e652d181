"""Base of kinds with one child: everything passes through unless a kind overrides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, TypeVar

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor
from energy_data.core.node import Change, ItemRef, Items, Node
from energy_data.core.spec import ItemKind, Spec
from energy_data.core.user_call import SKIPPED, Skipped

C = TypeVar("C", bound=Cursor)


@frozen(kw_only=True)
class UnarySpec(Spec):
    """A spec over one child, which returns items of the kind that the child returns."""

    of: Spec

    @property
    def children(self) -> Mapping[str, Spec]:
        return {"of": self.of}

    @property
    def item_kind(self) -> ItemKind:
        return self.of.item_kind

    def num_items(self, context: Context, epoch: int) -> int | None:
        return self.of.num_items(context.under("of"), epoch) if self.is_one_to_one else None

    def items_per_lane(self, context: Context) -> int:
        if not self.is_one_to_one:
            return super().items_per_lane(context)
        return self.of.items_per_lane(context.under("of"))

    def replay_blocker(self) -> str | None:
        return self.of.replay_blocker()


class UnaryNode(Node[C]):
    """A node over one child, whose items have the references of the child's items."""

    def __init__(self, start: C, spec: UnarySpec, context: Context) -> None:
        self.child = spec.of.build(context.under("of"))
        super().__init__(start, {"of": self.child})

    def replay(self, refs: Sequence[ItemRef]) -> Sequence[Any]:
        return self.child.replay(refs)

    def remap(self, refs: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        return self.child.remap(refs, change)


def without_skipped(values: Sequence[Any], refs: Sequence[Any]) -> Items:
    """Return the results of a user's function without the items that it skipped."""
    if Skipped not in set(map(type, values)):
        return Items(values, refs)
    kept = [value is not SKIPPED for value in values]
    return Items(list(compress(values, kept)), list(compress(refs, kept)))
