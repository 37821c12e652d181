"""Items that a node has read and not given yet: marks in its cursor, samples at hand.

A node that packs, groups or takes samples apart reads ahead of what it gives. Its cursor has the
*marks* of what is pending, in the order in which it was read; the samples are a cache, and are made
again from the marks where they are not at hand: after a restore, and after an error.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from energy_data.core.cursor_check import Problem
from energy_data.core.node import Change, Cursor, Held, ItemRef, Node
from energy_data.core.spec import Spec
from energy_data.errors import DataError, SpecError

T = TypeVar("T")
P = TypeVar("P", bound="BufferedCursor")

MAX_EMPTY_BLOCKS = 10_000  # in a row without an item: a filter that lets nothing pass


@dataclass
class BufferedCursor(Cursor):
    """The cursor of a node that keeps items back."""

    pending: tuple[ItemRef, ...] = ()  # read and not given, in the order of reading
    lost: int = 0  # items that were pending when their leaf was taken out of the metadataset


class ReplayCache(Generic[T]):
    """The pending items themselves. A cache: it looks at the marks to know what still holds."""

    def __init__(self, again: Callable[[Sequence[ItemRef]], Sequence[T]]) -> None:
        self._again = again
        self._marks: tuple[ItemRef, ...] = ()
        self._items: list[T] = []

    def items(self, marks: tuple[ItemRef, ...]) -> list[T]:
        """Return the items of `marks`; those that are not at hand are made again, in one block."""
        if not self.has(marks):
            known = dict(zip(self._marks, self._items, strict=True))
            missing = [mark for mark in dict.fromkeys(marks) if mark not in known]
            if missing:
                known.update(zip(missing, self._again(missing), strict=True))
            self.keep(marks, [known[mark] for mark in marks])
        return self._items

    def has(self, marks: tuple[ItemRef, ...]) -> bool:
        """Return whether exactly these are at hand."""
        return marks is self._marks or marks == self._marks

    def keep(self, marks: tuple[ItemRef, ...], items: list[T]) -> None:
        """Hold these items, and no others."""
        self._marks, self._items = marks, items


class BufferedNode(Node[Any, P]):
    """A node that keeps items of its one child back."""

    def __init__(self, start: P, child: Node[Any, Any]) -> None:
        super().__init__(start, {"of": child})
        self.child = child

    def faults(self, at: P) -> Iterable[Problem]:
        """Yield what is wrong of itself, and `pending` if it has samples that are not there."""
        yield from self.own_faults(at)
        if list(self.remap_pending(at.pending, _known)) != list(at.pending):
            yield "pending", "has references to what is not there"

    def own_faults(self, at: P) -> Iterable[Problem]:
        """Return what in a saved cursor cannot be, whatever samples there are."""
        return ()

    def move(self, change: Change) -> None:
        """Adapt the cursor to an edit of the tree: keep what is pending of leaves that stayed."""
        at = self.cursor
        kept = [mark for mark in self.remap_pending(at.pending, change) if mark is not None]
        at.pending, at.lost = tuple(kept), at.lost + len(at.pending) - len(kept)

    @property
    def pending_refs(self) -> Sequence[Held]:
        """References of what is pending."""
        return self._references(self.cursor.pending)

    def _references(self, marks: Sequence[ItemRef]) -> list[Held]:
        return references_in(marks, self.remap_pending)

    def remap_pending(self, marks: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        """Return marks of the cursor as they are after an edit; None where the leaf is gone."""
        return self.child.remap(marks, change)


def _known(tree: Node[Any, Any], reference: ItemRef) -> ItemRef | None:
    """Return a reference if its sample exists, else None."""
    return reference if tree.has_sample(reference) else None


def references_in(
    marks: Sequence[ItemRef], moved: Callable[[Sequence[ItemRef], Change], Any]
) -> list[Held]:
    """Return the references in some marks, each once. moved: makes a change to those in marks."""
    found: dict[Held, None] = {}

    def noted(tree: Node[Any, Any], reference: ItemRef) -> ItemRef:
        found[tree, reference] = None
        return reference

    moved(marks, noted)
    return list(found)


def of_whole(marks: Sequence[ItemRef]) -> list[ItemRef]:
    """Return marks of parts without those of items that are not all here: some were given.

    Start, stop and length of the item stand before the mark of each.
    """
    waits: Counter[ItemRef] = Counter()
    for mark in marks:
        waits[mark[3:]] += mark[1] - mark[0]
    return [mark for mark in marks if waits[mark[3:]] == mark[2]]


def read_marked(child: Node[T, Any], count: int) -> Sequence[tuple[ItemRef, T]]:
    """Return the next items with their marks, one at least. StopIteration at the end."""
    patience = EmptyGuard()
    while not (drawn := child.draw_marked(count)):
        patience.nothing_came()
    return drawn


class EmptyGuard:
    """Counts blocks of which nothing came, and gives up: better an error than a hang."""

    def __init__(self) -> None:
        self._blocks = 0

    def something_came(self) -> None:
        """Begin to count anew."""
        self._blocks = 0

    def nothing_came(self) -> None:
        """Count a block. DataError after too many in a row."""
        self._blocks += 1
        if self._blocks > MAX_EMPTY_BLOCKS:
            raise DataError(
                f"no sample came through in {MAX_EMPTY_BLOCKS} blocks in a row. Look at what "
                f"leaves samples out: a filter, SkipSample, a limit that all are above, bad data."
            )


def require_replayable(spec: Spec, of: Spec) -> None:
    """Raise SpecError if what is under `spec` cannot make samples again."""
    if culprit := of.replay_blocker():
        raise SpecError(
            f"{spec.kind}: a state has references to what is pending, never samples, but "
            f"{culprit!r} below it cannot make its items again from them. Put it above "
            f"{spec.kind!r}, or leave it out."
        )


def gives_parts(encode: Callable[[Any], Any] | None) -> bool:
    """Return whether a function is a generator: it gives several samples for one."""
    while isinstance(encode, partial):
        encode = encode.func
    return encode is not None and inspect.isgeneratorfunction(inspect.unwrap(encode))


def joined(marks: Sequence[ItemRef]) -> ItemRef:
    """Return several marks as one: of an item that is made of several."""
    return tuple(number for mark in marks for number in (len(mark), *mark))


def taken_apart(mark: ItemRef) -> Iterator[ItemRef]:
    """Yield the marks that were joined."""
    at = 0
    while at < len(mark):
        yield mark[at + 1 : at + 1 + mark[at]]
        at += 1 + mark[at]


def not_reproducible(what: str) -> DataError:
    """Return the error of a function that leaves out what it had made before."""
    return DataError(
        f"{what}: it was made before, and now it is left out. Packing and encoding must depend on "
        f"the samples alone: no global random numbers, no counters."
    )


def joined_and_moved(
    marks: Sequence[ItemRef],
    moved: Callable[[Sequence[ItemRef]], Sequence[ItemRef | None]],
    *,
    may_be_empty: bool,
) -> list[ItemRef | None]:
    """Return joined marks after an edit; None for an item that lost one of those it is made of.

    may_be_empty: items of nothing stay; else None for them too, as no run has made them.
    """
    found: list[ItemRef | None] = []
    for mark in marks:
        now = moved(list(taken_apart(mark)))
        whole = [one for one in now if one is not None]
        is_there = len(whole) == len(now) and (bool(whole) or may_be_empty)
        found.append(joined(whole) if is_there else None)
    return found
