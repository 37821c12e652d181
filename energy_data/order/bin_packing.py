"""Which of the documents that wait goes into a pack next: by size, in O(log n).

Documents have numbers, in the order of their arrival, and one size or several (tokens, images).
Both classes answer one question: which of them fits into the room that is left. Ask it until there
is none, and what was taken is a pack: by `FirstFit` the first bin of the first-fit algorithm over
all that waits, by `BestFit` that of best-fit with the largest first (Johnson, Demers, Ullman,
Garey, Graham: Worst-case performance bounds for simple one-dimensional packing algorithms, 1974).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort

Sizes = tuple[int, ...]

_BITS = 40
_LAST = (1 << _BITS) - 1
_NEVER = 1 << 62  # the size of nobody


class Fitting(ABC):
    """Documents that wait."""

    @abstractmethod
    def add(self, number: int, sizes: Sizes) -> None:
        """Let a document wait; its number is greater than all before it, and below 2**40."""

    @abstractmethod
    def remove(self, number: int, sizes: Sizes) -> None:
        """Take a document away."""

    @abstractmethod
    def find(self, room: Sizes, after: int) -> int | None:
        """Return the next document for a pack with this room; None if none fits.

        after: the one taken last for the same pack.
        """


class BestFit(Fitting):
    """The largest that fits, by the first size; among equals the one that came first.

    Each operation is a binary search in a sorted list, and a move of its tail. With several sizes,
    `find` goes on to smaller ones until all sizes fit.
    """

    def __init__(self) -> None:
        self._keys: list[int] = []  # size, then the latest number first
        self._sizes: dict[int, Sizes] = {}

    def add(self, number: int, sizes: Sizes) -> None:
        insort(self._keys, _key(number, sizes))
        if len(sizes) > 1:
            self._sizes[number] = sizes

    def remove(self, number: int, sizes: Sizes) -> None:
        del self._keys[bisect_left(self._keys, _key(number, sizes))]
        self._sizes.pop(number, None)

    def find(self, room: Sizes, after: int) -> int | None:
        at = bisect_right(self._keys, (room[0] << _BITS) + _LAST)
        while at:
            at -= 1
            number = _LAST - (self._keys[at] & _LAST)
            if len(room) == 1 or _fits(self._sizes[number], room):
                return number
        return None

    def smallest(self, count: int) -> list[int]:
        """Return the first sizes of the `count` smallest that wait, ascending; fewer if so many."""
        return [key >> _BITS for key in self._keys[:count]]


class FirstFit(Fitting):
    """The first that fits, in the order of arrival.

    A segment tree of the least sizes, one leaf per document; `find` goes down to the first leaf
    that fits. O(log n) with one size; with several, more where no single document is small in all.
    """

    def __init__(self) -> None:
        self._first = 0  # the number in the first leaf
        self._leaves = 1
        self._trees: list[list[int]] = []  # one per size; node n has children 2n and 2n + 1
        self._living: dict[int, Sizes] = {}

    def add(self, number: int, sizes: Sizes) -> None:
        self._living[number] = sizes
        if number - self._first >= self._leaves or not self._trees:
            self._build(len(sizes))
        else:
            self._set(number, sizes)

    def remove(self, number: int, sizes: Sizes) -> None:
        del self._living[number]
        self._set(number, (_NEVER,) * len(sizes))

    def find(self, room: Sizes, after: int) -> int | None:
        least = max(0, after + 1 - self._first)  # leaves before it are not looked at
        if least >= self._leaves:
            return None
        return self._find_one(room[0], least) if len(room) == 1 else self._find(room, least)

    def _find_one(self, room: int, least: int) -> int | None:
        tree, leaves = self._trees[0], self._leaves
        node = least + leaves
        while tree[node] > room:
            while node & 1:  # nothing in what is left of the parent either
                node >>= 1
            if not node:
                return None
            node += 1
        while node < leaves:
            node *= 2
            node += tree[node] > room
        return self._first + node - leaves

    def _find(self, room: Sizes, least: int) -> int | None:
        stack = [1]
        while stack:
            node = stack.pop()
            depth = node.bit_length() - 1
            width = self._leaves >> depth
            end = ((node - (1 << depth)) + 1) * width
            if end <= least or any(
                tree[node] > free for tree, free in zip(self._trees, room, strict=True)
            ):
                continue
            if node >= self._leaves:
                return self._first + node - self._leaves
            stack += (2 * node + 1, 2 * node)
        return None

    def _set(self, number: int, sizes: Sizes) -> None:
        for tree, size in zip(self._trees, sizes, strict=True):
            node = number - self._first + self._leaves
            tree[node] = size
            node >>= 1
            while node:
                least = min(tree[2 * node], tree[2 * node + 1])
                if tree[node] == least:
                    break
                tree[node] = least
                node >>= 1

    def _build(self, num_sizes: int) -> None:
        """Make the trees anew, with as many free leaves as there are documents: O(1) per `add`."""
        self._first = next(iter(self._living))
        used = max(self._living) - self._first + 1
        self._leaves = 1 << (2 * used - 1).bit_length()
        self._trees = []
        for which in range(num_sizes):
            tree = [_NEVER] * (2 * self._leaves)
            for number, sizes in self._living.items():
                tree[number - self._first + self._leaves] = sizes[which]
            for node in range(self._leaves - 1, 0, -1):
                tree[node] = min(tree[2 * node], tree[2 * node + 1])
            self._trees.append(tree)


def _key(number: int, sizes: Sizes) -> int:
    return (sizes[0] << _BITS) + _LAST - number


def _fits(sizes: Sizes, room: Sizes) -> bool:
    return all(size <= free for size, free in zip(sizes, room, strict=True))
