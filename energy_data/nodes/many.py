"""Nodes over several children, of which each item is one child's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, TypeVar

from energy_data.core.node import Change, Cursor, Mark, Node

C = TypeVar("C", bound=Cursor)

Drawn = tuple[int, Mark, Any]
"""The number of a child, the mark that an item has there, and the item."""

Draw = Callable[[int, int], list[Drawn]]
"""Draws from a child: takes its number, and how many items at most. StopIteration at its end."""


class BranchesNode(Node[Any, C]):
    """Gives items of its children, whose names are numbers. A mark begins with the child's."""

    @abstractmethod
    def mixed(self, count: int, draw: Draw) -> list[Drawn]:
        """Return what `Node.draw` returns, each item with where it is from."""

    def draw(self, count: int) -> list[Any]:
        return [item for _, _, item in self.mixed(count, self._plain)]

    def draw_marked(self, count: int) -> list[tuple[Mark, Any]]:
        return [
            ((number, *mark), item) for number, mark, item in self.mixed(count, self._with_marks)
        ]

    def again(self, marks: Sequence[Mark]) -> list[Any]:
        found: dict[int, Any] = {}
        for number in dict.fromkeys(mark[0] for mark in marks):
            places = [place for place, mark in enumerate(marks) if mark[0] == number]
            items = self.children[str(number)].again([marks[place][1:] for place in places])
            found.update(zip(places, items, strict=True))
        return [found[place] for place in range(len(marks))]

    def moved(self, marks: Sequence[Mark], change: Change) -> list[Mark | None]:
        moved: list[Mark | None] = []
        for number, *below in marks:
            child = self.children.get(str(number))
            mark = child.moved([tuple(below)], change)[0] if child else None
            moved.append(None if mark is None else (number, *mark))
        return moved

    def _plain(self, number: int, count: int) -> list[Drawn]:
        return list(zip(repeat(number), repeat(()), self.children[str(number)].draw(count)))

    def _with_marks(self, number: int, count: int) -> list[Drawn]:
        drawn = self.children[str(number)].draw_marked(count)
        return [(number, mark, item) for mark, item in drawn]
