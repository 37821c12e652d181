"""Draws of a lane, computed ahead in blocks: the sample and the leaf of each draw."""

from __future__ import annotations

from collections.abc import Mapping
from operator import add
from typing import NamedTuple

import numpy as np
from attrs import field, frozen

from energy_data.core.arrays import Int64s
from energy_data.core.references import References, rank_within
from energy_data.errors import DataError
from energy_data.nodes.leaf import LeafTable
from energy_data.order.tree import Order

# Draws computed ahead: a cache of a pure function, not state. A start needs few, and each lane
# pays for them. In later blocks the cost of a call of numpy, that of some hundred draws, is spread.
# A draw takes 24 bytes, so a lane has blocks of 400 kB at most.
FIRST_PLANNED, MOST_PLANNED, _GROWTH = 128, 16384, 16

KEPT_LEDGERS = 2  # stages that take turns ask for the same ledgers repeatedly

_NO_LIMIT = np.iinfo(np.int64).max

Returned = Mapping[int, tuple[tuple[int, int], ...]]


class Offsets(NamedTuple):
    """What others have drawn of the leaves before a draw of an order tree."""

    units: tuple[int, ...] = ()  # of each leaf, less those of earlier draws of the tree; empty: 0
    since: int = 0  # that draw of the tree
    returned: tuple[int, ...] = ()  # of each leaf: draws from there on that are given back samples


class _Block(NamedTuple):
    """The draws from `start` on, with these offsets."""

    start: int
    offsets: Offsets
    references: References
    refused: tuple[int, int] | None  # the first draw in the block that is refused, and its leaf

    def has(self, start: int, count: int, offsets: Offsets) -> bool:
        at = start - self.start
        return at >= 0 and at + count <= len(self.references) and offsets == self.offsets


_NONE = np.empty(0, np.int64)
_EMPTY = _Block(0, Offsets(), References(_NONE, _NONE, _NONE), None)


class LanePlan:
    """The order of one lane with the block computed last.

    Args:
        order: Which entry each draw goes to.
        table: The leaves, and which sample of its leaf a draw of the lane is.
    """

    def __init__(self, order: Order, table: LeafTable) -> None:
        self.order, self.table = order, table
        # Lanes share the draws that a leaf allows as they share an epoch of so many samples.
        self._most = np.full(len(table.leaves), _NO_LIMIT)
        for number, leaf in enumerate(table.leaves):
            if (most := leaf.most_chunks) is not None:
                self._most[number] = min(table.shares.own(number, most), _NO_LIMIT)
        self._block, self._ahead = _EMPTY, FIRST_PLANNED
        self._counts: dict[int, Int64s] = {}  # of the last places that were asked for

    def block(
        self, start: int, count: int, offsets: Offsets, most: int = MOST_PLANNED
    ) -> References:
        """Return the references of the draws start .. start + count; plans up to `most`.

        Returns fewer if a draw exceeds the `max_repetitions` of its leaf. DataError if the first
        does.
        """
        if not self._block.has(start, count, offsets):
            if offsets != self._block.offsets:
                # Others have drawn from the leaves, and may do so again, as two stages in a ramp
                # do. More draws would be wasted.
                self._ahead = count
            batches = max(min(self._ahead, most) // count, 1)
            self._block = self._planned(start, batches * count, offsets)
            self._ahead = min(_GROWTH * self._ahead, MOST_PLANNED)
        at, refused = start - self._block.start, self._block.refused
        if refused is not None and at + count > refused[0]:
            if at >= refused[0]:
                raise self._drawn_too_often(refused[1])
            count = refused[0] - at
        return self._block.references[at : at + count]

    def _planned(self, start: int, count: int, offsets: Offsets) -> _Block:
        """Return the block of the draws start .. start + count."""
        entries = self.order.choose(start, count)
        leaf = self.table.leaf_of_entry[entries]
        before, rank = self.ledger(start, offsets), rank_within(leaf)
        # Where samples are given back first, the numbers of their draws mean nothing.
        numbers = np.maximum((before // self.table.strides)[leaf] + rank, 0)
        references = References(entries.astype(np.int64), *self.table.locate(leaf, numbers))
        for place in np.flatnonzero(before % self.table.strides).tolist():
            regular = self._regular(start, offsets)[place]
            for at in np.flatnonzero((leaf == place) & (rank == -regular)).tolist():
                inside = int(before[place] % self.table.strides[place])
                cut, indices = self.table.leaves[place].cut, references.indices
                begin, end = cut.bounds(int(indices[at]))
                indices[at] = cut.index(begin + inside, end)
        beyond = np.flatnonzero(numbers >= self._most[leaf])
        refused = (int(beyond[0]), int(leaf[beyond[0]])) if len(beyond) else None
        return _Block(start, offsets, references, refused)

    def counts(self, draws: int) -> Int64s:
        """Return how many of the first `draws` draws went to each leaf, int64 [leaves]."""
        known = self._counts.get(draws)
        if known is None:
            for oldest in list(self._counts)[: len(self._counts) - KEPT_LEDGERS + 1]:
                del self._counts[oldest]
            known = self._counts[draws] = np.zeros(len(self.table.leaves), np.int64)
            if draws:
                np.add.at(known, self.table.leaf_of_entry, self.order.counts(draws))
        return known.copy()

    def ledger(self, draws: int, offsets: Offsets) -> Int64s:
        """Return how many units of each leaf come before draw number `draws`, int64 [leaves]."""
        units = self.counts(draws) * self.table.strides
        if not offsets.units:
            return units
        units += np.array(offsets.units, np.int64)
        inside = units % self.table.strides
        if inside.any():  # the first sample was short, and those after it are whole
            units -= inside * (self._regular(draws, offsets) > 0)
        return units

    def is_before_start(self, draws: int, offsets: tuple[int, ...]) -> bool:
        """Return whether a leaf is at a negative place before draw number `draws`."""
        return bool(self.ledger(draws, Offsets(offsets)).min() < 0)

    def _regular(self, draws: int, offsets: Offsets) -> Int64s:
        """Return the draws of each leaf since the offsets, without samples that were given back.

        Negative: so many are still to be given back.
        """
        returned = np.array(offsets.returned or 0, np.int64)
        return self.counts(draws) - self.counts(offsets.since) - returned

    def with_returned(
        self, block: References, draws: int, since: int, returned: Returned
    ) -> References:
        """Return a block from draw `draws` on, with returned samples in place of the first draws.

        The first ones of each leaf from draw `since` on.
        """
        leaf = self.table.leaf_of_entry[block.entries]
        rank = (self.counts(draws) - self.counts(since))[leaf] + rank_within(leaf)
        epochs, indices = block.epochs.copy(), block.indices.copy()
        for place, samples in returned.items():
            mine = (leaf == place) & (rank >= 0) & (rank < len(samples))
            for at in np.flatnonzero(mine).tolist():
                epochs[at], indices[at] = samples[rank[at]]
        return References(block.entries, epochs, indices)

    def _drawn_too_often(self, number: int) -> DataError:
        leaf = self.table.leaves[number]
        return DataError(
            f"leaf {leaf.id!r}: its {leaf.num_samples:,} samples were drawn {leaf.max_repetitions} "
            f"times, its `max_repetitions`, and the run needs more of them. Lower its weight, or "
            f"raise `max_repetitions`. With `budget_samples`, this is checked at the start of a "
            f"run."
        )


@frozen
class LeafOffsets:
    """Where the leaves of an order tree continue that other trees of its lane have drawn from."""

    drawn: tuple[int, ...]  # units of each leaf, by all order trees of the lane
    # Position of a leaf -> samples (epoch, index) that were drawn and not returned; they are next.
    returned: Returned = field(factory=dict)
    own: tuple[int, ...] = ()  # units of each leaf by this tree before; empty: none
    strides: tuple[int, ...] = ()  # units of a sample of each leaf; empty: 1
    starts: tuple[int, ...] = field(init=False)  # added to the units of this tree
    counts: tuple[int, ...] = field(init=False)  # of the returned samples of each leaf; empty: 0

    @starts.default
    def _without_returned(self) -> tuple[int, ...]:
        own, strides = self.own or (0,) * len(self.drawn), self.strides or (1,) * len(self.drawn)
        return tuple(
            drawn - own[place] - len(self.returned.get(place, ())) * strides[place]
            for place, drawn in enumerate(self.drawn)
        )

    @counts.default
    def _returned_of_each(self) -> tuple[int, ...]:
        each = tuple(len(self.returned.get(place, ())) for place in range(len(self.drawn)))
        return each if any(each) else ()

    def offsets(self, own: tuple[int, ...], since: int) -> Offsets:
        """Return what is added to the units of each leaf, including a tree's own offsets.

        since: the draw of the tree from which on these count.
        """
        units = tuple(map(add, self.starts, own)) if own and self.starts else own or self.starts
        return Offsets(units, since, self.counts)


NO_OFFSETS = LeafOffsets(())
