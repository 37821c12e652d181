"""Draws of a lane, computed ahead in blocks: the sample and the leaf of each draw."""

from __future__ import annotations

from collections.abc import Mapping
from operator import add
from typing import NamedTuple

import numpy as np
from attrs import field, frozen

from energy_data.core.references import Integers, References, rank_within
from energy_data.errors import DataError
from energy_data.nodes.leaf import LeafTable
from energy_data.order.tree import Order

# Draws computed ahead: a cache of a pure function, not state. A start needs few, and each lane
# pays for them. In later blocks the cost of a call of numpy, that of some hundred draws, is spread.
# A draw takes 24 bytes, so a lane has blocks of 400 kB at most.
FIRST_PLANNED, MOST_PLANNED, _GROWTH = 128, 16384, 16

KEPT_LEDGERS = 2  # stages that take turns ask for the same ledgers repeatedly

_NO_LIMIT = np.iinfo(np.int64).max

Offsets = tuple[int, ...]


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
_EMPTY = _Block(0, (), References(_NONE, _NONE, _NONE), None)


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
            if (most := leaf.most_draws) is not None:
                self._most[number] = min(table.shares.grains.count(number, most), _NO_LIMIT)
        self._block, self._ahead = _EMPTY, FIRST_PLANNED
        self._ledgers: dict[int, Integers] = {}  # of the last places that were asked for

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
        numbers = self.ledger(start, offsets)[leaf] + rank_within(leaf)
        references = References(entries.astype(np.int64), *self.table.shares.locate(leaf, numbers))
        beyond = np.flatnonzero(numbers >= self._most[leaf])
        refused = (int(beyond[0]), int(leaf[beyond[0]])) if len(beyond) else None
        return _Block(start, offsets, references, refused)

    def ledger(self, draws: int, offsets: Offsets) -> Integers:
        """Return how often each leaf was drawn before draw number `draws`, int64 [leaves]."""
        known = self._ledgers.get(draws)
        if known is None:
            for oldest in list(self._ledgers)[: len(self._ledgers) - KEPT_LEDGERS + 1]:
                del self._ledgers[oldest]
            known = self._ledgers[draws] = np.zeros(len(self.table.leaves), np.int64)
            np.add.at(known, self.table.leaf_of_entry, self.order.counts(draws))
        return known + np.array(offsets, np.int64) if offsets else known.copy()

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
