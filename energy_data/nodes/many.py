"""Nodes over several children, of which each item is one child's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, TypeVar

from energy_data.core.node import Change, Cursor, ItemRef, Node

C = TypeVar("C", bound=Cursor)

Drawn = tuple[int, ItemRef, Any]
"""The number of a child, the mark that an item has there, and the item."""

Draw = Callable[[int, int], list[Drawn]]
"""Draws from a child: takes its number, and how many items at most. StopIteration at its end."""


class MultiChildNode(Node[Any, C]):
    """Gives items of its children, whose names are numbers. A mark begins with the child's."""

    @abstractmethod
    def draw_from(self, count: int, draw: Draw) -> list[Drawn]:
        """Return what `Node.draw` returns, each item with where it is from."""

    def draw(self, count: int) -> list[Any]:
        return [item for _, _, item in self.draw_from(count, self._plain)]

    def draw_marked(self, count: int) -> list[tuple[ItemRef, Any]]:
        return [
            ((number, *mark), item)
            for number, mark, item in self.draw_from(count, self._with_marks)
        ]

    def replay(self, marks: Sequence[ItemRef]) -> list[Any]:
        found: dict[int, Any] = {}
        for number in dict.fromkeys(mark[0] for mark in marks):
            places = [place for place, mark in enumerate(marks) if mark[0] == number]
            items = self.children[str(number)].replay([marks[place][1:] for place in places])
            found.update(zip(places, items, strict=True))
        return [found[place] for place in range(len(marks))]

    def remap(self, marks: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        moved: list[ItemRef | None] = []
        for number, *below in marks:
            child = self.children.get(str(number))
            mark = child.remap([tuple(below)], change)[0] if child else None
            moved.append(None if mark is None else (number, *mark))
        return moved

    def _plain(self, number: int, count: int) -> list[Drawn]:
        return list(zip(repeat(number), repeat(()), self.children[str(number)].draw(count)))

    def _with_marks(self, number: int, count: int) -> list[Drawn]:
        drawn = self.children[str(number)].draw_marked(count)
        return [(number, mark, item) for mark, item in drawn]
