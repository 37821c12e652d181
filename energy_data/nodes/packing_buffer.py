"""Pending documents: which documents a sample contains, and which of them form a pack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from energy_data.core.node import ItemRef
from energy_data.core.packing import Packing
from energy_data.core.sample import describe_source
from energy_data.errors import DataError
from energy_data.order.bin_packing import BestFit, FirstFit, Fitting, Sizes


class Document(NamedTuple):
    """A document, or a part of one, that can go into a pack."""

    ref: ItemRef  # of its sample; of a split document, after start, stop and full length
    item: Any
    sizes: Sizes
    docs: int  # its count


def documents_of(packing: Packing, ref: ItemRef, item: Any) -> tuple[list[Document], int]:
    """Return the documents of a sample, and how much of the first limit is lost.

    Raises DataError if it is above a limit and that is an error.
    """
    sizes = packing.sizes(item)
    splits = packing.over_long == "split"
    if _fits(packing, sizes):
        return [Document((0, sizes[0], sizes[0], *ref) if splits else ref, item, sizes, 1)], 0
    if packing.over_long == "skip":
        return [], sizes[0]
    if packing.over_long == "error":
        raise _over_long(packing, item, sizes, "choose over_long='skip', 'truncate' or 'split'")
    limit = packing.limits[packing.filled]
    parts = []
    for start in range(0, sizes[0] if splits else 1, limit):
        stop = min(start + limit, sizes[0])
        part = packing.cut(item, start, stop)
        size = packing.sizes(part)
        if not _fits(packing, size):
            raise _over_long(packing, item, size, "give a `cut` that makes all sizes smaller")
        docs = int(not splits or stop == sizes[0] or packing.fragments == "each")
        own = (start, stop, sizes[0], *ref) if splits else ref
        parts.append(Document(own, part, size, docs))
    return parts, 0 if splits else sizes[0] - parts[0].sizes[0]


def _fits(packing: Packing, sizes: Sizes) -> bool:
    return all(size <= most for size, most in zip(sizes, packing.limits.values(), strict=True))


def _over_long(packing: Packing, item: Any, sizes: Sizes, or_else: str) -> DataError:
    has = ", ".join(f"{size} {name}" for name, size in zip(packing.limits, sizes, strict=True))
    most = ", ".join(f"{size} {name}" for name, size in packing.limits.items())
    return DataError(
        f"{describe_source(item)}: it does not fit into a pack: it has {has}, and a pack at most "
        f"{most}. Raise the limit, or {or_else}."
    )


class Buffer:
    """Pending documents, numbered in the order of arrival."""

    def __init__(self, packing: Packing, documents: Sequence[Document] = ()) -> None:
        self.limits = tuple(packing.limits.values())
        self.fitting: Fitting = BestFit() if packing.algorithm == "best_fit" else FirstFit()
        self.waiting: dict[int, Document] = {}
        self.refs: dict[int, ItemRef] = {}
        self._next = 0
        for document in documents:
            self.add(document)

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, document: Document) -> None:
        """Add a document."""
        number, self._next = self._next, self._next + 1
        self.waiting[number], self.refs[number] = document, document.ref
        self.fitting.add(number, document.sizes)

    def take(self, most: int | None = None) -> list[Document]:
        """Remove and return the documents of the next pack, at most `most`.

        First the oldest, then those that fit. The choice depends on the pending documents and the
        order of their arrival alone.
        """
        taken = [next(iter(self.waiting))]
        room, counted = self._without(self.limits, taken[0])
        while most is None or counted < most:
            number = self.fitting.find(room, taken[-1])
            if number is None:
                break
            room, docs = self._without(room, number)
            counted += docs
            taken.append(number)
        return self._popped(taken)

    def take_exactly(self, most: int) -> list[Document]:
        """Remove and return `most` documents for the next pack, or as many as fit.

        First the oldest, then always the largest that leaves room for the others.
        For one limit and best fit.
        """
        if not most:
            return []
        assert isinstance(self.fitting, BestFit)
        taken = [next(iter(self.waiting))]
        room, _ = self._without(self.limits, taken[0])
        free, left = room[0], 0
        for size in self.fitting.smallest(most - 1):
            if size > free:
                break
            free, left = free - size, left + 1
        while left:
            left -= 1
            reserved = sum(self.fitting.smallest(left))
            number = self.fitting.find((room[0] - reserved,), taken[-1])
            assert number is not None, "the smallest were counted to fit"
            room, _ = self._without(room, number)
            taken.append(number)
        return self._popped(taken)

    def _without(self, room: Sizes, number: int) -> tuple[Sizes, int]:
        """Remove a document from the search. Return the room after it, and its count."""
        document = self.waiting[number]
        self.fitting.remove(number, document.sizes)
        return tuple(a - b for a, b in zip(room, document.sizes, strict=True)), document.docs

    def _popped(self, taken: Sequence[int]) -> list[Document]:
        for number in taken:
            del self.refs[number]
        return [self.waiting.pop(number) for number in sorted(taken)]
