"""Map: a function of each item."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attrs import frozen

from energy_data.calls import Call
from energy_data.context import Context
from energy_data.errors import DataError, SkipSample
from energy_data.meter import MAPPING
from energy_data.node import Change, Cursor, Mark, Node
from energy_data.spec import Gives, Spec


@frozen(kw_only=True)
class MapSpec(Spec):
    """Give `function(item)`; an item for which it raises `SkipSample` is left out and counted."""

    keeps_count: ClassVar[bool] = True

    of: Spec
    function: Callable[[Any], Any]

    @property
    def children(self) -> Mapping[str, Spec]:
        return {"of": self.of}

    @property
    def gives(self) -> Gives:
        return self.of.gives

    def num_items(self, context: Context, epoch: int) -> int | None:
        return self.of.num_items(context.under("of"), epoch)

    def pass_of_lane(self, context: Context) -> int:
        return self.of.pass_of_lane(context.under("of"))

    def cannot_make_again(self) -> str | None:
        return self.of.cannot_make_again()

    def build(self, context: Context) -> MapNode:
        return MapNode(self, context)


@dataclass
class MapCursor(Cursor):
    skipped: int = 0  # items left out


class MapNode(Node[Any, MapCursor]):
    """A function over a stream."""

    leaves_out = (("skipped", "SkipSample in map functions"),)

    def __init__(self, spec: MapSpec, context: Context) -> None:
        super().__init__(MapCursor(), {"of": spec.of.build(context.under("of"))})
        self.function, self.meter = Call(spec.function, context, None, "mapping"), context.meter

    def draw(self, count: int) -> list[Any]:
        items = []
        drawn = self.children["of"].draw(count)
        began = time.perf_counter()
        for item in drawn:
            try:
                items.append(self.function(item, self.cursor))
            except SkipSample:
                self.cursor.skipped += 1
        self.meter.charge(MAPPING, time.perf_counter() - began)
        return items

    def draw_marked(self, count: int) -> list[tuple[Mark, Any]]:
        items, drawn = [], self.children["of"].draw_marked(count)
        began = time.perf_counter()
        for mark, item in drawn:
            try:
                items.append((mark, self.function(item, self.cursor, mark)))
            except SkipSample:
                self.cursor.skipped += 1
        self.meter.charge(MAPPING, time.perf_counter() - began)
        return items

    def again(self, marks: Sequence[Mark]) -> list[Any]:
        try:
            items = self.children["of"].again(marks)
            return [
                self.function(item, self.cursor, mark)
                for mark, item in zip(marks, items, strict=True)
            ]
        except SkipSample as error:
            raise DataError(
                "map: an item that was given before is now left out. The function must depend on "
                "the item alone: no global random numbers, no counters."
            ) from error

    def moved(self, marks: Sequence[Mark], change: Change) -> list[Mark | None]:
        return self.children["of"].moved(marks, change)
