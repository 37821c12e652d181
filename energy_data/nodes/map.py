"""Map: a function of each item."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, ClassVar

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.node import Change, Cursor, ItemRef, Node
from energy_data.core.profiler import MAPPING
from energy_data.core.spec import ItemKind, Spec
from energy_data.core.user_call import SKIPPED, UserCall
from energy_data.errors import DataError


@frozen(kw_only=True)
class MapSpec(Spec):
    """Give `function(item)`; an item for which it raises `SkipSample` is left out and counted."""

    kind = "map"
    is_one_to_one: ClassVar[bool] = True

    of: Spec
    function: Callable[[Any], Any]

    @property
    def children(self) -> Mapping[str, Spec]:
        return {"of": self.of}

    @property
    def item_kind(self) -> ItemKind:
        return self.of.item_kind

    def num_items(self, context: Context, epoch: int) -> int | None:
        return self.of.num_items(context.under("of"), epoch)

    def items_per_lane(self, context: Context) -> int:
        return self.of.items_per_lane(context.under("of"))

    def replay_blocker(self) -> str | None:
        return self.of.replay_blocker()

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
        self.function = UserCall(spec.function, context, None, "mapping")
        self.profiler = context.profiler

    def draw(self, count: int) -> list[Any]:
        made = self._mapped(self.children["of"].draw(count))
        items = [item for item in made if item is not SKIPPED]
        self.cursor.skipped += len(made) - len(items)
        return items

    def draw_marked(self, count: int) -> list[tuple[ItemRef, Any]]:
        drawn = self.children["of"].draw_marked(count)
        marks = [mark for mark, _ in drawn]
        made = self._mapped([item for _, item in drawn], marks)
        items = [pair for pair in zip(marks, made, strict=True) if pair[1] is not SKIPPED]
        self.cursor.skipped += len(made) - len(items)
        return items

    def replay(self, marks: Sequence[ItemRef]) -> list[Any]:
        made = self._mapped(self.children["of"].replay(marks), marks)
        if any([item is SKIPPED for item in made]):  # noqa: C419 - a generator takes twice the time
            raise DataError(
                "map: an item that was given before is now left out. The function must depend on "
                "the item alone: no global random numbers, no counters."
            )
        return made

    def remap(self, marks: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        return self.children["of"].remap(marks, change)

    def _mapped(self, items: Sequence[Any], marks: Iterable[ItemRef] = repeat(())) -> list[Any]:
        began = time.perf_counter()
        made = self.function.each(items, self.cursor, marks)
        self.profiler.add(MAPPING, time.perf_counter() - began)
        return made
