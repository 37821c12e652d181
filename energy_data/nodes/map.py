"""Functions of items: `map` makes one item of each, `flat_map` any number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor
from energy_data.core.node import Items
from energy_data.core.profiler import MAPPING
from energy_data.core.user_call import ErrorPolicy, UserCall
from energy_data.errors import DataError
from energy_data.nodes.unary import CallNode, UnaryNode, UnarySpec


@frozen(kw_only=True)
class MapSpec(UnarySpec):
    """Return `function(item)`. If it raises `SkipSample`, skip the item."""

    kind = "map"
    is_one_to_one = True

    function: Callable[[Any], Any]

    def build(self, context: Context) -> MapNode:
        return MapNode(self, context)


class MapNode(CallNode):
    leaves_out = (("skipped", "SkipSample in map functions"),)

    def __init__(self, spec: MapSpec, context: Context) -> None:
        super().__init__(spec, context, UserCall(spec.function, context, "mapping", MAPPING))


@frozen(kw_only=True)
class FlatMapSpec(UnarySpec):
    """Return what the generator `function(item)` yields, for each item in turn.

    While parts of an item are left, the child stays in front of the item: a state has no items, so
    the item is made again after a restore. `function` must depend on the item alone. For samples as
    they are read, `EncodeSpec` does the same with references, and can be packed and grouped.
    """

    kind = "flat_map"
    unsaved = ("on_failure",)

    function: Callable[[Any], Iterator[Any]]
    on_failure: ErrorPolicy | None = None  # None: errors are raised

    def replay_blocker(self) -> str:
        return self.kind

    def build(self, context: Context) -> FlatMapNode:
        return FlatMapNode(self, context)


@dataclass
class FlatMapCursor(Cursor):
    part: int = 0  # parts returned of the item that comes next below
    skipped: int = 0  # items of which no part was returned
    failures: int = 0  # since the last part


class UnderWay(NamedTuple):
    """An item with parts left. Valid only where the cursors are as recorded here."""

    before: Any  # the cursors below, in front of the item
    part: int
    after: Any  # and behind it
    parts: Iterator[Any]


class FlatMapNode(UnaryNode[FlatMapCursor]):
    leaves_out = (("skipped", "no part was made of items"),)

    def __init__(self, spec: FlatMapSpec, context: Context) -> None:
        super().__init__(FlatMapCursor(), spec, context)
        self.call = UserCall(spec.function, context, "splitting", on_failure=spec.on_failure)
        self._under_way: UnderWay | None = None

    def draw(self, count: int) -> Items:
        at, parts = self.cursor, list[Any]()
        while len(parts) < count:
            try:
                item = self._next_item()
            except StopIteration:
                if not parts:
                    raise
                break
            if item is None:
                break  # a skipped item keeps its place: the caller counts micro-batches
            wanted = count - len(parts)
            given = list(islice(item.parts, wanted))
            parts += given
            at.part += len(given)
            if len(given) == wanted:  # there may be more
                self.child.rollback(item.before)
                self._under_way = item._replace(part=at.part)
                break
            at.skipped += at.part == 0
            at.part = 0
        return Items(parts, [None] * len(parts))

    def _next_item(self) -> UnderWay | None:
        """Return the item to continue with, and move the child behind it. None: it was skipped."""
        item, self._under_way = self._under_way, None
        before = self.child.snapshot()
        if item is not None and (item.before, item.part) == (before, self.cursor.part):
            self.child.rollback(item.after)
            return item
        items = self.child.draw(1)
        if not items.values:
            return None
        made = self.call.parts(items.values[0], lambda: self.cursor, items.refs[0])
        if len(list(islice(made, self.cursor.part))) < self.cursor.part:
            raise DataError(
                f"{self.call.name}: it yields fewer items than before the save. It must depend on "
                f"its argument alone: no global random numbers, no counters."
            )
        return UnderWay(before, self.cursor.part, self.child.snapshot(), made)
