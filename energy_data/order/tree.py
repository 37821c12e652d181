"""The order tree: draw number of a lane -> leaf, as a pure function with random access.

An order knows nothing of samples. It numbers the occurrences of leaves in its tree (*entries*), and
answers for any range of draws of its lane which entry each draw goes to, and how many draws every
entry has had before. Orders keep caches of these answers, never a place.

A *pass* (epoch) of an order is one run through its leaves; `begin(e)` is how many draws of this
lane come before pass e, for all e >= 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from energy_data.order.epochized import EpochizedChoice
from energy_data.order.quota import QuotaChoice, WholeBatches
from energy_data.order.shares import Shares
from energy_data.order.weighted import ExhaustingChoice, ScheduledChoice, WeightedChoice

Entries = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]
Choice = (
    WeightedChoice
    | ScheduledChoice
    | QuotaChoice
    | WholeBatches
    | EpochizedChoice
    | ExhaustingChoice
)


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

    def choose_beside(self, others: Sequence[Order], start: int, count: int) -> Entries:
        """Return what `choose` does, of this lane and of other lanes' orders of the same tree.

        int32 [1 + others, count].
        """
        return np.stack([order.choose(start, count) for order in (self, *others)])

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
        return self._entries(self.choice.choose(start, count), start)

    def choose_beside(self, others: Sequence[Order], start: int, count: int) -> Entries:
        if not isinstance(self.choice, WeightedChoice):
            return super().choose_beside(others, start, count)
        orders = [self, *(order for order in others if isinstance(order, ChoiceOrder))]
        choices = [order.choice for order in orders if isinstance(order.choice, WeightedChoice)]
        assert len(choices) == 1 + len(others), "orders of one tree are of one kind in all lanes"
        children = self.choice.choose_beside(choices[1:], start, count)
        each = zip(orders, children, strict=True)
        return np.stack([order._entries(row, start) for order, row in each])

    def _entries(self, children: Entries, start: int) -> Entries:
        """Return the entries of draws from `start` on that go to these children."""
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


class PassOrder(Order):
    """Base of orders that are made pass by pass."""

    def passes(self, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield (pass, first draw within it, number of draws) that cover start .. start + count."""
        epoch = self.epoch_of(start)
        stop = start + count
        while start < stop:
            first, end = self.begin(epoch), self.begin(epoch + 1)
            if end > start:
                taken = min(end, stop) - start
                yield epoch, start - first, taken
                start += taken
            epoch += 1

    def epoch_of(self, draw: int) -> int:
        """Return the pass of a draw: the last that begins at or before it. O(log) steps."""
        low, high = 0, 1
        while self.begin(high) <= draw:
            low, high = high, high * 2
            if high > 1 << 62:
                raise ValueError(f"draw {draw} lies beyond pass 2**62: the order gives no samples.")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.begin(middle) <= draw else (low, middle)
        return low


class ConcatOrder(PassOrder):
    """One child after another; a pass takes one pass of each."""

    def __init__(self, children: Sequence[Order]) -> None:
        super().__init__(children[0].num_entries)
        self.children = children

    def begin(self, epoch: int) -> int:
        return sum(child.begin(epoch) for child in self.children)

    def choose(self, start: int, count: int) -> Entries:
        parts = [np.empty(0, np.int32)]
        for epoch, offset, taken in self.passes(start, count):
            low, high = offset, offset + taken
            for child in self.children:
                first, length = child.begin(epoch), child.begin(epoch + 1) - child.begin(epoch)
                if low < length and high > 0:
                    begin, end = max(low, 0), min(high, length)
                    parts.append(child.choose(first + begin, end - begin))
                low, high = low - length, high - length
        return np.concatenate(parts)

    def counts(self, start: int) -> Counts:
        epoch = self.epoch_of(start)
        left = start - self.begin(epoch)
        counts = np.zeros(self.num_entries, np.int64)
        for child in self.children:
            first, length = child.begin(epoch), child.begin(epoch + 1) - child.begin(epoch)
            taken = min(max(left, 0), length)
            counts += child.counts(first + taken)
            left -= length
        return counts


class ExhaustingOrder(PassOrder):
    """A blend in passes: by weight while the children last, each child one pass per pass."""

    def __init__(
        self, children: Sequence[Order], choice: Callable[[Sequence[int]], ExhaustingChoice]
    ) -> None:
        super().__init__(children[0].num_entries)
        self.children, self._choice = children, choice
        self._cache: tuple[int, ChoiceOrder] | None = None

    def begin(self, epoch: int) -> int:
        return sum(child.begin(epoch) for child in self.children)

    def choose(self, start: int, count: int) -> Entries:
        parts = [np.empty(0, np.int32)]
        for epoch, offset, taken in self.passes(start, count):
            parts.append(self._within(epoch).choose(offset, taken))
        return np.concatenate(parts)

    def counts(self, start: int) -> Counts:
        epoch = self.epoch_of(start)
        inside = self._within(epoch).counts(start - self.begin(epoch))
        for child in self.children:
            inside += child.counts(child.begin(epoch))
        return inside

    def _within(self, epoch: int) -> ChoiceOrder:
        """Return the order inside one pass; its children count from their own pass's begin."""
        if self._cache is None or self._cache[0] != epoch:
            lengths = [child.begin(epoch + 1) - child.begin(epoch) for child in self.children]
            # A leaf's entry does not depend on its draw number, so leaves need no shift.
            inside = [
                child if isinstance(child, LeafOrder) else _From(child, child.begin(epoch))
                for child in self.children
            ]
            self._cache = epoch, ChoiceOrder(inside, self._choice(lengths))
        return self._cache[1]


class VirtualEpochOrder(Order):
    """A child with passes of `length` draws over all lanes; each goes on where the last ended."""

    def __init__(self, child: Order, *, length: int, position: int, lanes: int) -> None:
        super().__init__(child.num_entries)
        self.child, self.length, self.position, self.lanes = child, length, position, lanes

    def begin(self, epoch: int) -> int:
        return (epoch * self.length + self.position) // self.lanes

    def choose(self, start: int, count: int) -> Entries:
        return self.child.choose(start, count)

    def counts(self, start: int) -> Counts:
        return self.child.counts(start)


class RepeatOrder(Order):
    """A child with passes of `times` of its own."""

    def __init__(self, child: Order, *, times: int) -> None:
        super().__init__(child.num_entries)
        self.child, self.times = child, times

    def begin(self, epoch: int) -> int:
        return self.child.begin(epoch * self.times)

    def choose(self, start: int, count: int) -> Entries:
        return self.child.choose(start, count)

    def counts(self, start: int) -> Counts:
        return self.child.counts(start)


class _From(Order):
    """A child whose draws are numbered from `first` on."""

    def __init__(self, child: Order, first: int) -> None:
        super().__init__(child.num_entries)
        self.child, self.first = child, first

    def begin(self, epoch: int) -> int:
        return self.child.begin(epoch) - self.first

    def choose(self, start: int, count: int) -> Entries:
        return self.child.choose(self.first + start, count)

    def counts(self, start: int) -> Counts:
        return self.child.counts(self.first + start) - self.child.counts(self.first)
