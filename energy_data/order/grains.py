"""Which draws of a leaf a lane makes: grains of neighbouring draws, dealt to the lanes in turns.

If a micro-batch has r draws of a leaf, grain k of each lane has ceil((k + 1) r) - ceil(k r) draws.
Turn k deals grain k of lane 0, then of lane 1, and so on. While each lane has r draws in each of
its micro-batches, draw number n over all lanes is the n-th draw that the consumer receives, for any
number of lanes. Otherwise each number still belongs to exactly one lane.

A large leaf, and a leaf with less than one draw in a micro-batch, is dealt in single draws. Each
such leaf permutes the lanes, so that no lane is the first one in all of many leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from energy_data.core.arrays import Int64s
from energy_data.core.keys import mix
from energy_data.order.permutation import permute

LARGEST_DENOMINATOR = 1 << 10
"""Of the size of a grain. A rounded size is off by a draw after a million micro-batches."""

_LARGEST = 1 << 62
_LARGEST_GRAIN = 1 << 21
_LANE = 1  # what a leaf's key is used for


def grain_size(draws: Fraction) -> Fraction:
    """Return the size of grains for so many draws of a leaf in a micro-batch; 0: single draws."""
    if draws < 1:
        return Fraction(0)
    return min(draws, Fraction(_LARGEST_GRAIN)).limit_denominator(LARGEST_DENOMINATOR)


class Grains:
    """How the draws of k leaves are dealt to one lane.

    Args:
        sizes: The size of the grains of each leaf; 0: single draws, in a permutation of the lanes.
        keys: Keys of the leaves, uint64 [k].
        lane: The number of this lane, 0 to lanes - 1.
        lanes: The number of lanes.
    """

    def __init__(
        self, sizes: Sequence[Fraction], keys: ArrayLike, *, lane: int, lanes: int
    ) -> None:
        self.lanes = lanes
        self._draws = np.array([size.numerator or 1 for size in sizes], np.int64)
        self._turns = np.array([size.denominator for size in sizes], np.int64)
        single = np.array([not size for size in sizes], bool)
        permuted = lanes - 1 - permute(np.int64(lane), lanes, mix(keys, _LANE))
        self.positions = np.where(single, permuted, lane)  # of the lane in each turn, int64 [k]
        self.widest = -(-self._draws // self._turns)  # draws in the largest grain, int64 [k]
        self._reach = _LARGEST // max(lanes, int(self._turns.max(initial=1)))

    def check(self, draws: Int64s) -> None:
        """Raise OverflowError if a draw of this lane is too large."""
        if (latest := int(draws.max(initial=0))) + 1 >= self._reach:
            raise OverflowError(
                f"draw {latest} of a leaf in {self.lanes} lanes is out of reach: "
                f"draws times lanes must stay below 2**62"
            )

    def numbers(self, leaves: Int64s, draws: Int64s) -> Int64s:
        """Return which draw of its leaf, over all lanes, each draw of this lane is; int64 [m]."""
        first, size = self._grain(leaves, draws)
        return first * self.lanes + self.positions[leaves] * size + (draws - first)

    def counts(self, leaves: Int64s, totals: Int64s) -> Int64s:
        """Return how many of the first `totals` draws of the leaves are this lane's; int64 [m]."""
        first, size = self._grain(leaves, totals // self.lanes)
        before = first * self.lanes + self.positions[leaves] * size
        own: Int64s = first + np.clip(totals - before, 0, size)
        return own

    def count(self, leaf: int, total: int) -> int:
        """Return how many of the first `total` draws of a leaf are this lane's; any size."""
        draws, turns = int(self._draws[leaf]), int(self._turns[leaf])
        turn = total // self.lanes * turns // draws
        first = -(-turn * draws // turns)
        size = -(-(turn + 1) * draws // turns) - first
        before = first * self.lanes + int(self.positions[leaf]) * size
        return first + min(max(total - before, 0), size)

    def _grain(self, leaves: Int64s, draws: Int64s) -> tuple[Int64s, Int64s]:
        """Return the first draw of the grain of each draw of a lane, and the size of the grain."""
        size, turns = self._draws[leaves], self._turns[leaves]
        # The last turn whose first draw, rounded up, is at or before this one.
        end = draws * turns // size * size + turns - 1
        first = end // turns
        return first, (end + size) // turns - first
