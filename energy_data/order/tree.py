"""The order tree: draw number of a lane -> leaf, as a pure function with random access.

An order knows nothing of samples. It numbers the occurrences of leaves in its tree (*entries*), and
answers for any range of draws of its lane which entry each draw goes to, and how many draws every
entry has had before. Orders keep caches of these answers, never a place.

A *pass* (epoch) of an order is one run through its leaves; `begin(e)` is how many draws of this
lane come before pass e, for all e >= 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from energy_data.core.arrays import Int64s
from energy_data.order.quota import EpochizedChoice
from energy_data.order.shares import Shares

Entries = npt.NDArray[np.int32]
Counts = Int64s


class Choice(Protocol):
    """Which child each draw of one lane goes to."""

    def choose(self, start: int, count: int) -> Entries:
        """Return the child of each of the draws start .. start + count, int32 [count]."""
        ...

    def counts_before(self, start: int) -> Counts:
        """Return how many of the first `start` draws each child has had, int64 [children]."""
        ...


class Order(ABC):
    """The draws of one lane over the entries of one subtree."""

    def __init__(self, num_entries: int) -> None:
        self.num_entries = num_entries  # of the whole tree

    @abstractmethod
    def begin(self, epoch: int) -> int:
        """Return the number of draws of this lane before pass `epoch`."""

    @abstractmethod
    def choose(self, start: int, count: int) -> Entries:
        """Return the entry of each of the draws start .. start + count, int32 [count]."""

    @abstractmethod
    def counts(self, start: int) -> Counts:
        """Return how many of the first `start` draws went to each entry, int64 [num_entries]."""


class LeafOrder(Order):
    """A leaf, epoch after epoch."""

    def __init__(self, entry: int, leaf: int, shares: Shares, num_entries: int) -> None:
        super().__init__(num_entries)
        self.entry, self.leaf, self.shares = entry, leaf, shares

    def begin(self, epoch: int) -> int:
        return self.shares.begin(self.leaf, epoch)

    def choose(self, start: int, count: int) -> Entries:
        return np.full(count, self.entry, np.int32)

    def counts(self, start: int) -> Counts:
        counts = np.zeros(self.num_entries, np.int64)
        counts[self.entry] = start
        return counts


class ChoiceOrder(Order):
    """Several children, drawn as a pure choice says; the children go on without end."""

    def __init__(self, children: Sequence[Order], choice: Choice) -> None:
        super().__init__(children[0].num_entries)
        self.children, self.choice = children, choice
        # Leaves are the bulk of a wide blend: their entries come from one table, without a loop.
        self.entries = np.array(
            [child.entry if isinstance(child, LeafOrder) else -1 for child in children], np.int32
        )
        self.inner = [number for number, entry in enumerate(self.entries) if entry < 0]

    def begin(self, epoch: int) -> int:
        if isinstance(self.choice, EpochizedChoice):
            return self.choice.begin(epoch)
        return sum(child.begin(epoch) for child in self.children)

    def choose(self, start: int, count: int) -> Entries:
        children = self.choice.choose(start, count)
        entries: Entries = self.entries[children]
        if self.inner:
            before = self.choice.counts_before(start)
            for number in self.inner:
                mine = np.flatnonzero(children == number)
                if len(mine):
                    drawn = self.children[number].choose(int(before[number]), len(mine))
                    entries[mine] = drawn
        return entries

    def counts(self, start: int) -> Counts:
        before = self.choice.counts_before(start)
        leaves = self.entries >= 0
        counts = np.zeros(self.num_entries, np.int64)
        counts[self.entries[leaves]] = before[leaves]
        for number in self.inner:
            counts += self.children[number].counts(int(before[number]))
        return counts


class ConcatChoice:
    """One child after another, each for its count of draws."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._begins = self._ends - counts

    def choose(self, start: int, count: int) -> Entries:
        """Return the child of each of the draws start .. start + count, int32 [count]."""
        draws = np.arange(start, start + count)
        return np.searchsorted(self._ends, draws, side="right").astype(np.int32)

    def counts_before(self, start: int) -> Counts:
        """Return how many of the first `start` draws each child has had, int64 [children]."""
        counts: Counts = np.clip(start, self._begins, self._ends) - self._begins
        return counts


class PassOrder(Order):
    """Several children in passes. A pass takes one pass of each child, in the order of a choice."""

    def __init__(
        self, children: Sequence[Order], choice: Callable[[Sequence[int]], Choice] = ConcatChoice
    ) -> None:
        """choice: takes the number of draws of each child in a pass; default: one after another."""
        super().__init__(children[0].num_entries)
        self.children, self._choice = children, choice
        self._cache: tuple[int, ChoiceOrder] | None = None

    def begin(self, epoch: int) -> int:
        return sum(child.begin(epoch) for child in self.children)

    def choose(self, start: int, count: int) -> Entries:
        parts = [np.empty(0, np.int32)]
        epoch, stop = self._epoch_of(start), start + count
        while start < stop:
            first, end = self.begin(epoch), min(self.begin(epoch + 1), stop)
            if end > start:
                parts.append(self._within(epoch).choose(start - first, end - start))
                start = end
            epoch += 1
        return np.concatenate(parts)

    def counts(self, start: int) -> Counts:
        epoch = self._epoch_of(start)
        inside = self._within(epoch).counts(start - self.begin(epoch))
        for child in self.children:
            inside += child.counts(child.begin(epoch))
        return inside

    def _epoch_of(self, draw: int) -> int:
        """Return the pass of a draw: the last that begins at or before it. O(log) steps."""
        high = 1
        while self.begin(high) <= draw:
            high *= 2
            if high > 1 << 62:
                raise ValueError(f"draw {draw} lies beyond pass 2**62: the order gives no samples.")
        low = high // 2
        return low + bisect_right(range(low, high), draw, key=self.begin) - 1

    def _within(self, epoch: int) -> ChoiceOrder:
        """Return the order inside one pass. Its children count draws from the begin of the pass."""
        if self._cache is None or self._cache[0] != epoch:
            lengths = [child.begin(epoch + 1) - child.begin(epoch) for child in self.children]
            # A leaf's entry does not depend on its draw number, so leaves need no shift.
            inside = [
                child if isinstance(child, LeafOrder) else RenumberedOrder(child, epoch)
                for child in self.children
            ]
            self._cache = epoch, ChoiceOrder(inside, self._choice(lengths))
        return self._cache[1]


class ChildOrder(Order):
    """Base of orders with the draws of one child, and other passes."""

    def __init__(self, child: Order) -> None:
        super().__init__(child.num_entries)
        self.child = child

    def choose(self, start: int, count: int) -> Entries:
        return self.child.choose(start, count)

    def counts(self, start: int) -> Counts:
        return self.child.counts(start)


class VirtualEpochOrder(ChildOrder):
    """A child with passes of `length` draws over all lanes; each goes on where the last ended."""

    def __init__(self, child: Order, *, length: int, position: int, lanes: int) -> None:
        super().__init__(child)
        self.length, self.position, self.lanes = length, position, lanes

    def begin(self, epoch: int) -> int:
        return (epoch * self.length + self.position) // self.lanes


class RepeatOrder(ChildOrder):
    """A child with passes of `times` of its own."""

    def __init__(self, child: Order, *, times: int) -> None:
        super().__init__(child)
        self.times = times

    def begin(self, epoch: int) -> int:
        return self.child.begin(epoch * self.times)


class RenumberedOrder(ChildOrder):
    """A child from its pass `epoch` on, whose draws are numbered from 0."""

    def __init__(self, child: Order, epoch: int) -> None:
        super().__init__(child)
        self.epoch, self.first = epoch, child.begin(epoch)

    def begin(self, epoch: int) -> int:
        return self.child.begin(self.epoch + epoch) - self.first

    def choose(self, start: int, count: int) -> Entries:
        return self.child.choose(self.first + start, count)

    def counts(self, start: int) -> Counts:
        return self.child.counts(self.first + start) - self.child.counts(self.first)
