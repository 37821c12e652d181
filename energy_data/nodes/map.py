"""Map: a function of each item."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor
from energy_data.core.node import ItemRef, Items
from energy_data.core.profiler import MAPPING
from energy_data.core.user_call import Skipped, UserCall
from energy_data.nodes.buffered import not_reproducible
from energy_data.nodes.unary import UnaryNode, UnarySpec, without_skipped


@frozen(kw_only=True)
class MapSpec(UnarySpec):
    """Return `function(item)`. If it raises `SkipSample`, skip the item."""

    kind = "map"
    is_one_to_one = True

    function: Callable[[Any], Any]

    def build(self, context: Context) -> MapNode:
        return MapNode(self, context)


@dataclass
class MapCursor(Cursor):
    skipped: int = 0


class MapNode(UnaryNode[MapCursor]):
    leaves_out = (("skipped", "SkipSample in map functions"),)

    def __init__(self, spec: MapSpec, context: Context) -> None:
        super().__init__(MapCursor(), spec, context)
        self.function, self.profiler = (
            UserCall(spec.function, context, None, "mapping"),
            context.profiler,
        )

    def draw(self, count: int) -> Items:
        items, refs = self.child.draw(count)
        made = without_skipped(self._mapped(items, refs), refs)
        self.cursor.skipped += len(items) - len(made.values)
        return made

    def replay(self, refs: Sequence[ItemRef]) -> list[Any]:
        made = self._mapped(self.child.replay(refs), refs)
        if Skipped in set(map(type, made)):
            raise not_reproducible("map: an item")
        return made

    def _mapped(self, items: Sequence[Any], refs: Sequence[Any]) -> list[Any]:
        began = time.perf_counter()
        made = self.function.each(items, self.cursor, refs)
        self.profiler.add(MAPPING, time.perf_counter() - began)
        return made
