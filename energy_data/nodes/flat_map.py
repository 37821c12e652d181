"""Flat map: any number of items for one, over any stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.node import Cursor, Node
from energy_data.core.spec import ItemKind, Spec
from energy_data.core.user_call import ErrorPolicy, UserCall
from energy_data.errors import DataError


@frozen(kw_only=True)
class FlatMapSpec(Spec):
    """Give what the generator `function(item)` yields, for each item in turn.

    While an item is given in part, what is below stays before it: a state has no items, and the
    item is made again after a restore. `function` must depend on the item alone. For samples as
    they are read `EncodeSpec` does the same with references, and can be packed and grouped.
    """

    kind = "flat_map"
    of: Spec
    function: Callable[[Any], Iterator[Any]]
    on_failure: ErrorPolicy | None = None  # None: errors are raised

    @property
    def children(self) -> Mapping[str, Spec]:
        return {"of": self.of}

    @property
    def item_kind(self) -> ItemKind:
        return self.of.item_kind

    def build(self, context: Context) -> FlatMapNode:
        return FlatMapNode(self, context)


@dataclass
class FlatMapCursor(Cursor):
    part: int = 0  # parts given of the item that comes next below
    skipped: int = 0  # items of which no part was given
    failures: int = 0  # since the last part


class UnderWay(NamedTuple):
    """An item that is given in part: good where the cursors are as they are here."""

    before: Any  # the places below, before the item
    part: int
    after: Any  # and after it
    parts: Iterator[Any]


class FlatMapNode(Node[Any, FlatMapCursor]):
    """A generator function over a stream."""

    leaves_out = (("skipped", "nothing was made of items"),)

    def __init__(self, spec: FlatMapSpec, context: Context) -> None:
        self.child = spec.of.build(context.under("of"))
        super().__init__(FlatMapCursor(), {"of": self.child})
        self.call = UserCall(spec.function, context, spec.on_failure, "taking apart")
        self._under_way: UnderWay | None = None

    def draw(self, count: int) -> list[Any]:
        at, parts = self.cursor, list[Any]()
        while len(parts) < count:
            try:
                item = self._next_item()
            except StopIteration:
                if parts:
                    return parts
                raise
            if item is None:
                return parts  # it keeps its place: the caller counts micro-batches
            wanted = count - len(parts)
            given = list(islice(item.parts, wanted))
            parts += given
            at.part += len(given)
            if len(given) == wanted:  # there may be more
                self.child.rollback(item.before)
                self._under_way = item._replace(part=at.part)
                return parts
            at.skipped += at.part == 0
            at.part = 0
        return parts

    def _next_item(self) -> UnderWay | None:
        """Return the item to go on with; what is below is after it then. None: it is left out."""
        item, self._under_way = self._under_way, None
        before = self.child.snapshot()
        if item is not None and (item.before, item.part) == (before, self.cursor.part):
            self.child.rollback(item.after)
            return item
        items = self.child.draw(1)
        if not items:
            return None
        made = self.call.parts(items[0], lambda: self.cursor)
        if len(list(islice(made, self.cursor.part))) < self.cursor.part:
            raise DataError(
                f"{self.call.name}: it gives fewer items than before the save. It must depend on "
                f"its argument alone: no global random numbers, no counters."
            )
        return UnderWay(before, self.cursor.part, self.child.snapshot(), made)
