"""Draws of lanes, computed ahead in blocks: the sample and the leaf of each draw.

The lanes of a process take turns, so when one lane needs its next block, the others soon need the
block of the same draws. A call of numpy costs as much as some hundred draws, so lanes are planned
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from operator import add
from typing import NamedTuple

import numpy as np
from attrs import field, frozen

from energy_data.core.context import Context
from energy_data.core.references import Integers, References, rank_within
from energy_data.errors import DataError
from energy_data.nodes.leaf import LeafTable
from energy_data.order.tree import Order

# Draws of a lane computed ahead: a cache of a pure function, not state. A start needs few. Later,
# blocks of less than some thousand draws, of all lanes, cost several times as much per draw.
FIRST_PLANNED, MOST_PLANNED = 128, 4096
MOST_TOGETHER = 16_384  # draws of all lanes at a time: one batch waits some milliseconds

KEPT_LEDGERS = 2  # stages that take turns ask for the same ledgers repeatedly

Offsets = tuple[int, ...]


class _Block(NamedTuple):
    """The draws of a lane from `start` on, with these offsets."""

    start: int
    offsets: Offsets
    references: References
    refused: tuple[int, int] | None  # the first draw in the block that is refused, and its leaf
    after: Integers  # how often each leaf was drawn before its end, offsets included

    def has(self, start: int, count: int, offsets: Offsets) -> bool:
        at = start - self.start
        return at >= 0 and at + count <= len(self.references) and offsets == self.offsets


_NONE = np.empty(0, np.int64)
_EMPTY = _Block(0, (), References(_NONE, _NONE, _NONE), None, _NONE)


class LanePlan:
    """The order of one lane with the blocks computed last.

    Args:
        order: Which entry each draw goes to.
        table: The leaves, and which sample of its leaf a draw of the lane is.
        together: The plans of the lanes of this process.
    """

    def __init__(self, order: Order, table: LeafTable, together: LanePlans) -> None:
        self.order, self.table, self._together = order, table, together
        # Lanes share the draws that a leaf allows as they share an epoch of so many samples.
        self._most = {
            number: table.shares.part(number, most)
            for number, leaf in enumerate(table.leaves)
            if (most := leaf.most_draws) is not None
        }
        self._block = self._next = _EMPTY
        self._asked: tuple[int, Offsets] | None = None  # where the last block handed out ended
        self._ledgers: dict[int, Integers] = {}  # of the last places that were asked for
        self._since = 0  # the first draw asked for with these offsets
        self._ahead = FIRST_PLANNED

    def block(
        self, start: int, count: int, offsets: Offsets, most: int = MOST_PLANNED
    ) -> References:
        """Return the references of the draws start .. start + count; plans up to `most`.

        Returns fewer if a draw exceeds the `max_repetitions` of its leaf. DataError if the first
        does.
        """
        if not self._block.has(start, count, offsets):
            if not self._next.has(start, count, offsets):
                alone, ahead = self._is_interrupted(start, offsets), min(self._ahead, most)
                self._together.plan(self, start, count, ahead, offsets, alone=alone)
            self._block, self._next = self._next, _EMPTY
        at, refused = start - self._block.start, self._block.refused
        if refused is not None and at + count > refused[0]:
            if at >= refused[0]:
                raise self._drawn_too_often(refused[1])
            count = refused[0] - at
        self._asked = start + count, offsets
        return self._block.references[at : at + count]

    def _is_interrupted(self, start: int, offsets: Offsets) -> bool:
        """Return whether others have drawn from the leaves since the last block.

        They may do so again, as two stages in a ramp do, so this lane plans fewer draws, and plans
        alone: the rest would be wasted.
        """
        if self._asked is None or self._asked[1] == offsets:
            return False
        used = self._asked[0] - self._since
        self._since, self._ahead = start, min(self._ahead, 2 * used)
        return True

    def ledger(self, draws: int, offsets: Offsets) -> Integers:
        """Return how often each leaf was drawn before draw number `draws`, int64 [leaves]."""
        known = self._ledgers.get(draws)
        if known is None:
            for oldest in list(self._ledgers)[: len(self._ledgers) - KEPT_LEDGERS + 1]:
                del self._ledgers[oldest]
            known = self._ledgers[draws] = np.zeros(len(self.table.leaves), np.int64)
            np.add.at(known, self.table.leaf_of_entry, self.order.counts(draws))
        return known + np.array(offsets, np.int64) if offsets else known.copy()

    def before(self, start: int, offsets: Offsets) -> Integers:
        """Return what `ledger` returns, without computing it at the end of a block."""
        for block in (self._block, self._next):
            if offsets == block.offsets and start == block.start + len(block.references) > 0:
                return block.after
        return self.ledger(start, offsets)

    def asks_at(self, start: int, offsets: Offsets) -> Offsets | None:
        """Return the offsets with which this lane will ask for a block from `start`.

        Returns None if it will not, or has the block. offsets: Of another lane, used if this lane
        has asked for nothing yet.
        """
        asked, ours = (start, offsets) if self._asked is None else self._asked
        if asked != start or (self._asked is None and offsets):
            return None
        has = any(block.has(start, 1, ours) for block in (self._block, self._next))
        return None if has else ours

    def take(self, block: _Block) -> None:
        """Keep a block until it is needed."""
        self._next, self._ahead = block, min(4 * self._ahead, MOST_PLANNED)

    def first_refused(
        self, leaf: Integers, numbers: Integers, after: Integers
    ) -> tuple[int, int] | None:
        """Return the first draw that exceeds the limit of its leaf, and that leaf, if any."""
        found = []
        for number, most in self._most.items():
            if after[number] > most:
                found.append((int(np.flatnonzero((leaf == number) & (numbers >= most))[0]), number))
        return min(found, default=None)

    def _drawn_too_often(self, number: int) -> DataError:
        leaf = self.table.leaves[number]
        return DataError(
            f"leaf {leaf.id!r}: its {leaf.num_samples:,} samples were drawn {leaf.max_repetitions} "
            f"times, its `max_repetitions`, and the run needs more of them. Lower its weight, or "
            f"raise `max_repetitions`. With `budget_samples`, this is checked at the start of a "
            f"run."
        )


class LanePlans:
    """The plans of the lanes of a process over one order tree.

    Args:
        table: The leaves, with the shares of all lanes.
        lanes: The contexts of the lanes, in the order in which they take turns.
        order: Returns the order of a lane.
    """

    def __init__(
        self,
        table: LeafTable,
        lanes: Sequence[Context],
        order: Callable[[Context, LeafTable], Order],
    ) -> None:
        self._table, self.by_lane = table, dict[int, LanePlan]()
        for lane in lanes:
            own = table.in_lane(lane)
            self.by_lane[lane.lane] = LanePlan(order(lane, own), own, self)
        self._plans = list(self.by_lane.values())

    def plan(
        self,
        asking: LanePlan,
        start: int,
        batch: int,
        ahead: int,
        offsets: Offsets,
        *,
        alone: bool,
    ) -> None:
        """Plan the draws from `start` of this lane and, if not `alone`, of those that ask next.

        Plans full batches of `batch` draws, at least one, and at most `ahead` draws of a lane.
        """
        first = self._plans.index(asking)
        most = 0 if alone else max(1, MOST_TOGETHER // batch) - 1
        others = islice(self._asking(first, start, offsets), most)
        rows = [(first, offsets), *others]
        plans = [self._plans[row] for row, _ in rows]
        count = max(1, min(ahead, MOST_TOGETHER // len(rows)) // batch) * batch

        entry = asking.order.choose_beside([plan.order for plan in plans[1:]], start, count)
        leaf = self._table.leaf_of_entry[entry]
        before = np.concatenate(
            [plan.before(start, ours) for plan, (_, ours) in zip(plans, rows, strict=True)]
        )
        drawn = self._numbered(leaf, range(len(rows)))
        numbers = before[drawn] + rank_within(drawn)
        after = before + np.bincount(drawn, minlength=len(before))
        which = self._numbered(leaf, [row for row, _ in rows])
        epoch, index = self._table.shares.locate(which, numbers)

        by_lane = (values.reshape(len(rows), -1) for values in (numbers, after, epoch, index))
        for plan, (_, ours), *lane in zip(plans, rows, entry, leaf, *by_lane, strict=True):
            entries, leaves, number, drawn_after, epochs, indices = lane
            references = References(entries.astype(np.int64), epochs, indices)
            refused = plan.first_refused(leaves, number, drawn_after)
            plan.take(_Block(start, ours, references, refused, drawn_after))

    def _asking(self, first: int, start: int, offsets: Offsets) -> Iterator[tuple[int, Offsets]]:
        """Yield the lanes that ask for a block from `start` next, in the order of their turns."""
        for row in (*range(first + 1, len(self._plans)), *range(first)):
            if (ours := self._plans[row].asks_at(start, offsets)) is not None:
                yield row, ours

    def _numbered(self, leaf: Integers, rows: Sequence[int]) -> Integers:
        """Return leaves [rows, draws] as numbers that differ by row too, [rows * draws]."""
        numbers: Integers = leaf + len(self._table.leaves) * np.array(rows)[:, np.newaxis]
        return numbers.reshape(-1)


@frozen
class LeafOffsets:
    """Where the leaves of an order tree continue that other trees of its lane have drawn from."""

    drawn: tuple[int, ...]  # draws of each leaf, by all order trees of the lane
    # Position of a leaf -> samples (epoch, number) that were drawn and not returned; they are next.
    returned: Mapping[int, tuple[tuple[int, int], ...]] = field(factory=dict)
    own: tuple[int, ...] = ()  # draws of each leaf by this tree before; empty: none
    starts: tuple[int, ...] = field(init=False)  # added to the draws of this tree

    @starts.default
    def _without_returned(self) -> tuple[int, ...]:
        own = self.own or (0,) * len(self.drawn)
        return tuple(
            drawn - own[place] - len(self.returned.get(place, ()))
            for place, drawn in enumerate(self.drawn)
        )

    def offsets(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Return what is added to the draws of each leaf, including a tree's own offsets."""
        return tuple(map(add, self.starts, own)) if own and self.starts else own or self.starts

    def put_in(self, epochs: Integers, indices: Integers, leaf: Integers, rank: Integers) -> None:
        """Replace the first draws of leaves by the returned samples. All arrays are int64 [n].

        leaf: Of each draw. rank: How often the tree has drawn that leaf before.
        """
        for place, samples in self.returned.items():
            # Negative offsets only place weights that follow the run; they are no draws.
            first = max(self.own[place], 0) if self.own else 0
            mine = (leaf == place) & (rank >= first) & (rank < first + len(samples))
            for at in np.flatnonzero(mine).tolist():
                epochs[at], indices[at] = samples[rank[at] - first]


NO_OFFSETS = LeafOffsets(())
