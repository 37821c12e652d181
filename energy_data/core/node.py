"""The one contract of the package: a running thing in one lane whose place can be saved.

All that changes in a node is its cursor, a small plain dataclass; saving is reading the cursors.
A new node is a cursor and a `draw`. It may keep caches of what its cursor can rebuild, and looks
at its cursor to know whether they still hold, so that nothing has to be told after a restore.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from energy_data.core.cursor_check import Problem, raise_if, wrong_kinds
from energy_data.errors import DataError, StateMismatchError

T_co = TypeVar("T_co", covariant=True)
C = TypeVar("C", bound="Cursor")

MAX_EMPTY_DRAWS = 100_000  # then nothing ever comes through, and waiting on would be a hang

Fields = dict[str, Any]
"""The fields of a cursor."""

State = dict[str, Fields]
"""Path of a node in its tree -> the fields of its cursor. Plain JSON data."""

ItemRef = tuple[int, ...]
"""What an item is made again from: the reference of its sample, after what nodes add to it."""

Held = tuple["Node[Any, Any]", ItemRef]
"""The root of an order tree and one of its references, (entry, epoch, number)."""

Change = Callable[["Node[Any, Any]", ItemRef], ItemRef | None]
"""Takes the root of an order tree and one of its references, (entry, epoch, number); returns the
same after an edit of the tree, None if its leaf is gone."""


@dataclass
class Cursor:
    """Everything that changes while a node runs: ints, strings, None and tuples of these.

    Fields are replaced, never changed in place; a copy of the cursor is a snapshot.
    """

    def copy(self: C) -> C:
        """Return a snapshot; a tenth of the time of `copy.copy`."""
        return self.with_fields(self.__dict__)

    def with_fields(self: C, fields: Mapping[str, Any]) -> C:
        """Return a cursor of this kind with all these fields."""
        twin = object.__new__(type(self))
        twin.__dict__.update(fields)
        return twin


class Node(ABC, Iterator[T_co], Generic[T_co, C]):
    """Gives items in blocks, keeps its place in `cursor`, and owns its named children."""

    # Fields of the cursor that count items left out, each with why they are, in words.
    leaves_out: ClassVar[tuple[tuple[str, str], ...]] = ()

    _exchanged: ClassVar[int] = 0  # how often a node has exchanged a child

    def __init__(self, start: C, children: Mapping[str, Node[Any, Any]] | None = None) -> None:
        self.children: Mapping[str, Node[Any, Any]] = MappingProxyType(dict(children or {}))
        self.cursor = start
        self._start = start.copy()
        self._below: tuple[int, list[tuple[str, Node[Any, Any]]]] = -1, []  # see `tree`

    @abstractmethod
    def draw(self, count: int) -> Sequence[T_co]:
        """Return the next items, `count` at most; fewer where the node must stop for a boundary.

        Raises StopIteration when there is nothing more, at once and again on every later call.
        Parents call this on their children; everyone else calls `take`, which loses nothing if
        an error comes up half-way.
        """

    def allow_batch_views(self) -> None:
        """Give samples with rows from now on, if nobody but us has seen them (`core/rows.py`).

        Called by a parent that shows them to nobody either, and only draws.
        """

    @property
    def pending_refs(self) -> Sequence[Held]:
        """What was drawn and is not given on yet: roots of order trees with a reference each.

        In order. Of this node alone, not of those under it. A stage that is left hands them back.
        """
        return ()

    def draw_marked(self, count: int) -> Sequence[tuple[ItemRef, T_co]]:
        """Return what `draw` returns, each item with its mark.

        A node that keeps items back (to pack or to group them) keeps their marks in its cursor.
        Only where the spec says nothing in `replay_blocker`.
        """
        raise TypeError(f"{type(self).__name__} gives items without marks")

    def replay(self, marks: Sequence[ItemRef]) -> Sequence[T_co]:
        """Return the items of some marks, made again, wherever the node is; it does not move.

        Raises DataError if one cannot be made any more.
        """
        raise TypeError(f"{type(self).__name__} cannot make items again, asked for {len(marks)}")

    def remap(self, marks: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        """Return the marks with `change` made to the references in them; None where it says so."""
        raise TypeError(f"{type(self).__name__} has no marks, got {len(marks)} and {change}")

    def has_sample(self, reference: ItemRef) -> bool:
        """Return whether there is a sample (entry, epoch, number); of the root of an order tree."""
        raise TypeError(f"{type(self).__name__} is no root of an order tree, got {reference}")

    def rewind(self) -> None:
        """Go back to the first item, as the next epoch."""
        for child in self.children.values():
            child.rewind()
        self.cursor = self._start.copy()

    def take(self, count: int) -> Sequence[T_co]:
        """Return what `draw` returns; if it raises, the whole tree stays where it was."""
        before = self.snapshot()
        try:
            return self.draw(count)
        except BaseException:
            self.rollback(before)
            raise

    def snapshot(self) -> list[Fields]:
        """Return a snapshot of the whole tree, parents first; for `rollback`."""
        return [node.cursor.__dict__.copy() for _, node in self.tree()]

    def rollback(self, cursors: Sequence[Fields]) -> None:
        """Go to the place of a snapshot."""
        for (_, node), fields in zip(self.tree(), cursors, strict=True):
            node.cursor = node.cursor.with_fields(fields)

    def replace_child(self, name: str, child: Node[Any, Any]) -> None:
        """Put another child in the place of one. The only way to change children."""
        self.children = MappingProxyType({**self.children, name: child})
        Node._exchanged += 1

    def __next__(self) -> T_co:
        for _ in range(MAX_EMPTY_DRAWS):  # what is left out may leave a block empty
            if items := self.take(1):
                return items[0]
        raise DataError(
            f"no item came through in {MAX_EMPTY_DRAWS} draws in a row. Look at what leaves items "
            f"out: a filter, SkipSample, or bad data."
        )

    def walk(self, path: str = "root") -> Iterator[tuple[str, Node[Any, Any]]]:
        """Yield every node of the tree with its path, parents first."""
        yield path, self
        for name, child in self.children.items():
            yield from child.walk(f"{path}/{name}")

    def tree(self) -> Sequence[tuple[str, Node[Any, Any]]]:
        """Return what `walk` yields; remembered, as it is asked for with every batch."""
        exchanged, below = self._below
        if exchanged != Node._exchanged:
            exchanged = Node._exchanged
            _, *below = self.walk()  # without this one, which would keep itself alive
            self._below = exchanged, below
        return [("root", self), *below]

    def state_dict(self) -> State:
        """Return the place of the whole tree, path by path. Reads no data, changes nothing."""
        return {path: {**fields} for path, node in self.tree() if (fields := node.cursor.__dict__)}

    def load_state_dict(self, state: State) -> None:
        """Go to a saved place. StateMismatchError if it is of another tree; nothing moves then.

        Nor does it if a value is not of the kind that its field is, which is a StateError.
        """
        ours, theirs = (
            {path: set(fields) for path, fields in tree.items()}
            for tree in (self.state_dict(), state)
        )
        if wrong := sorted(path for path in ours | theirs if ours.get(path) != theirs.get(path)):
            raise StateMismatchError(f"state: it is of another tree, {', '.join(wrong)} differ.")
        cursors = [node.restored(path, state.get(path, {})) for path, node in self.walk()]
        for (_, node), cursor in zip(self.walk(), cursors, strict=True):
            node.cursor = cursor

    def restored(self, path: str, found: Mapping[str, Any]) -> C:
        """Return the cursor of this node, which is at `path`, that saved fields make.

        StateError if they are damaged, with what is wrong. Reads no data, changes nothing.
        """
        values = {name: as_tuples(value) for name, value in found.items()}
        raise_if(path, lambda: wrong_kinds(type(self._start), values))
        cursor = replace(self._start, **values)
        raise_if(path, lambda: self.faults(cursor))
        return cursor

    def faults(self, at: C) -> Iterable[Problem]:
        """Return what in a saved cursor, of the right kinds, cannot be of this node."""
        return ()


def places(tree: Sequence[tuple[str, Node[Any, Any]]], cursors: Sequence[Fields]) -> State:
    """Return a snapshot of a tree as its state: without nodes that have nothing to save."""
    return {path: {**fields} for (path, _), fields in zip(tree, cursors, strict=True) if fields}


def as_tuples(value: Any) -> Any:
    """Return a value with its lists, however deep, as tuples."""
    if isinstance(value, list | tuple):
        return tuple(map(as_tuples, value))
    return value
