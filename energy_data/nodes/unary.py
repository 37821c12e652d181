"""Base of kinds with one child: everything passes through unless a kind overrides it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor
from energy_data.core.node import Change, ItemRef, Node
from energy_data.core.spec import Spec
from energy_data.errors import DataError

C = TypeVar("C", bound=Cursor)


@frozen(kw_only=True)
class UnarySpec(Spec):
    """A spec over one child, which returns items of the kind that the child returns."""

    of: Spec

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


@dataclass
class SkipCursor(Cursor):
    """The cursor of a node that calls one user function."""

    skipped: int = 0  # items that the function skipped
    failures: int = 0  # consecutive failures of the function


def not_reproducible(what: str) -> DataError:
    """Return the error for a function that skips an item which it made before."""
    return DataError(
        f"{what}: it was made before the save and is now skipped, or has fewer parts. User "
        f"functions must depend on their arguments alone: no global random numbers, no counters."
    )
