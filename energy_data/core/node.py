"""The contract of a node: it produces the items of one lane of a run; its position can be saved.

Everything that changes in a node is in its cursor, a small plain dataclass. Saving a tree reads its
cursors; restoring replaces them. A node may cache what its cursor can rebuild. It compares the
cache with the cursor before use, so it needs no notice of a restore.

A new kind of node is a cursor and a `draw`. Subclass `UnaryNode` for one child, `MultiChildNode`
for several, and `BufferedNode` to hold items back. `nodes/filter.py` is a short example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from energy_data.core.cursor import Cursor, Fields, Problem
from energy_data.errors import DataError

C = TypeVar("C", bound=Cursor)

MAX_EMPTY_DRAWS = 10_000  # in a row
MAX_EMPTY_ITEMS = 100_000  # asked for in a row
_MOST_COUNTED = 1_000  # of one draw, which may stop early at a boundary

ItemRef = tuple[Any, ...]
"""What an item is made from, as nested tuples of ints.

A sample is (entry, epoch, index); a pack is a tuple of the references of its samples; some nodes
put a number in front, such as the number of the child.
"""

PendingRef = tuple["Node[Any]", ItemRef]
"""The root of an order tree, and a reference (entry, epoch, index) in it."""

Change = Callable[["Node[Any]", ItemRef], ItemRef | None]
"""Maps a reference (entry, epoch, index) to the same sample after an edit of the order tree.

Takes the root of the order tree and the reference. Returns None if the leaf was removed.
"""


class Items(NamedTuple):
    """A block of items and, for each, the reference that it can be made from again."""

    values: Sequence[Any]
    refs: Sequence[Any]  # an ItemRef per value; None where `Spec.replay_blocker` names a node


class Node(ABC, Generic[C]):
    """Produces items in blocks, keeps its position in `cursor`, and owns its named children.

    Every node implements `draw`. The other methods to override are `rewind`, `replay`, `remap`,
    `pending_refs`, `allow_batch_views` and `faults`; the bases implement them for most kinds.
    """

    leaves_out: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Fields of the cursor that count skipped items, each with the reason in words."""

    def __init__(self, start: C, children: Mapping[str, Node[Any]] | None = None) -> None:
        self.children: Mapping[str, Node[Any]] = dict(children or {})
        self.cursor = start
        self._start = start.copy()

    @abstractmethod
    def draw(self, count: int) -> Items:
        """Return up to `count` next items: fewer, or none, where the node stops at a boundary.

        Only parents call it. Others call `take`, which restores the tree if an error is raised.

        Raises:
            StopIteration: There are no more items; also on every later call.
        """

    def rewind(self) -> None:
        """Go to the first item of the next epoch."""
        for child in self.children.values():
            child.rewind()
        self.cursor = self._start.copy()

    def replay(self, refs: Sequence[ItemRef]) -> Sequence[Any]:
        """Return the items of references, made again. Does not move the node.

        Raises DataError for an item that can no longer be made.
        """
        raise TypeError(f"{type(self).__name__} cannot replay items, got {len(refs)} references")

    def remap(self, refs: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        """Return references with `change` applied to the samples in them; None for lost items."""
        raise TypeError(f"{type(self).__name__} has no references, got {len(refs)} and {change}")

    @property
    def pending_refs(self) -> Sequence[PendingRef]:
        """The samples that this node, without its children, has read and not returned, in order."""
        return ()

    def allow_batch_views(self) -> None:
        """Allow samples whose tensors are rows of one batch tensor (`core/batch_memory.py`).

        A parent calls it if it only draws, and shows samples to no other code.
        """

    def faults(self, at: C) -> Iterable[Problem]:
        """Return what is wrong in a saved cursor whose fields have the right types."""
        return ()

    def draw_some(self, count: int) -> Items:
        """Return what `draw` returns, but at least one item."""
        if (items := self.draw(count)).values:
            return items
        guard = EmptyGuard()
        while not items.values:
            guard.count((), count)
            items = self.draw(count)
        return items

    def take(self, count: int) -> Sequence[Any]:
        """Return the values that `draw` returns. If it raises, the tree stays where it was."""
        before = self.snapshot()
        try:
            return self.draw(count).values
        except BaseException:
            self.rollback(before)
            raise

    def snapshot(self) -> list[Fields]:
        """Return the cursors of the whole tree, parents first; for `rollback`."""
        return [node.cursor.__dict__.copy() for _, node in self.walk()]

    def rollback(self, cursors: Sequence[Fields]) -> None:
        """Go to the position of a snapshot."""
        for (_, node), fields in zip(self.walk(), cursors, strict=True):
            node.cursor = node.cursor.copy(fields)

    def active(self) -> Iterator[Node[Any]]:
        """Yield the nodes of the tree that the next draw may reach, parents first."""
        yield self
        for child in self.children.values():
            yield from child.active()

    def walk(self, path: str = "root") -> Iterator[tuple[str, Node[Any]]]:
        """Yield every node of the tree with its path, parents first."""
        yield path, self
        for name, child in self.children.items():
            yield from child.walk(f"{path}/{name}")


class EmptyGuard:
    """Counts draws in a row that returned nothing, and raises an error instead of a hang."""

    def __init__(self) -> None:
        self._draws = 0
        self._asked = 0

    def count(self, items: Sized, asked: int = 1) -> None:
        """Count a draw that asked for up to `asked` items.

        Raises DataError after too many empty draws in a row: `MAX_EMPTY_DRAWS`, or fewer that asked
        for `MAX_EMPTY_ITEMS` items.
        """
        if items:
            self._draws = self._asked = 0
            return
        self._draws += 1
        self._asked += min(asked, _MOST_COUNTED)
        if self._draws > MAX_EMPTY_DRAWS or self._asked > MAX_EMPTY_ITEMS:
            size = "one item" if asked == 1 else f"up to {asked} items"
            raise DataError(
                f"no item was returned in {self._draws - 1} draws in a row, each of {size}. Check "
                f"what skips items: a filter, SkipSample, a limit that all exceed, or bad data."
            )
