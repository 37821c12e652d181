"""Draws of one lane in blocks, computed ahead: which sample of which leaf each of them is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from energy_data.block import Integers, References, rank_within
from energy_data.order.shares import Shares
from energy_data.order.tree import Order

# Draws computed ahead: a cache of a pure function, not state. A start wants few; in the long run
# blocks below some thousand draws cost several times as much per draw.
FIRST_PLANNED, MOST_PLANNED = 128, 4096


class PlannedDraws(ABC):
    """The order of one lane with the block computed last.

    Args:
        order: Which entry each draw goes to.
        leaf_of_entry: The number of each entry's leaf, int64 [entries].
        shares: Which sample of its leaf a lane's draw is.
        most: How often each leaf may be drawn over the run and all lanes; None: no limit. Lanes
            share that as they share an epoch of so many samples.
    """

    def __init__(
        self,
        order: Order,
        leaf_of_entry: Integers,
        shares: Shares,
        most: Sequence[int | None],
    ) -> None:
        self.order, self._leaf_of_entry, self._shares = order, leaf_of_entry, shares
        self._num_leaves = len(most)
        self._most = {
            number: shares.part(number, draws)
            for number, draws in enumerate(most)
            if draws is not None
        }
        self._start = 0
        self._offsets: tuple[int, ...] = ()
        self._block = References(*(np.empty(0, np.int64) for _ in range(3)))
        self._refused: tuple[int, int] | None = None  # draw in the block, and its leaf
        self._after: tuple[int, tuple[int, ...], Integers] | None = None
        self._ahead = FIRST_PLANNED

    @abstractmethod
    def refuse(self, leaf: int) -> NoReturn:
        """Raise the error of a leaf that was drawn as often as it may be."""

    def block(
        self, start: int, count: int, offsets: tuple[int, ...], most: int = MOST_PLANNED
    ) -> References:
        """Return the references of the draws start .. start + count; plans up to `most`.

        Fewer where the next one would be too often of its leaf; that one is refused.
        """
        at = start - self._start
        if not (at >= 0 and at + count <= len(self._block) and offsets == self._offsets):
            self._resolve(start, max(count, min(self._ahead, most)), offsets)
            self._ahead = min(4 * self._ahead, MOST_PLANNED)
            at = 0
        if self._refused is not None and at + count > self._refused[0]:
            if at >= self._refused[0]:
                self.refuse(self._refused[1])
            count = self._refused[0] - at
        return self._block[at : at + count]

    def ledger(self, draws: int, offsets: tuple[int, ...]) -> Integers:
        """Return how often each leaf was drawn before draw number `draws`, int64 [leaves]."""
        drawn = np.zeros(self._num_leaves, np.int64)
        np.add.at(drawn, self._leaf_of_entry, self.order.counts(draws))
        return drawn + np.array(offsets, np.int64) if offsets else drawn

    def _resolve(self, start: int, count: int, offsets: tuple[int, ...]) -> None:
        entry = self.order.choose(start, count).astype(np.int64)
        leaf = self._leaf_of_entry[entry]
        if self._after is not None and self._after[:2] == (start, offsets):
            before = self._after[2]
        else:
            before = self.ledger(start, offsets)
        numbers = before[leaf] + rank_within(leaf)
        epoch, index = self._shares.locate(leaf, numbers)
        after = before + np.bincount(leaf, minlength=len(before))
        self._start, self._offsets = start, offsets
        self._block = References(entry, epoch, index)
        self._refused = self._too_often(leaf, numbers, after)
        self._after = start + count, offsets, after

    def _too_often(
        self, leaf: Integers, numbers: Integers, after: Integers
    ) -> tuple[int, int] | None:
        """Return the first draw that is too often of its leaf, and that leaf, if there is one."""
        found = []
        for number, most in self._most.items():
            if after[number] > most:
                found.append((int(np.flatnonzero((leaf == number) & (numbers >= most))[0]), number))
        return min(found, default=None)
