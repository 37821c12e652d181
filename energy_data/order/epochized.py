"""Which child of an epochised blend a lane draws next: exact counts in every pass."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from energy_data.order.splits import (
    LARGEST_TOTAL,
    Numbers,
    Splits,
    check_draw,
    exact_quotient,
    integer_weights,
)

# Weights that are computed at once: passes times children.
_CELLS = 1 << 18
# Draws of one pass from which it pays to deal them on their own.
_MANY = 256


class EpochizedChoice:
    """The children of one lane's draws, pass after pass, with exact counts in each.

    Over all lanes, child i has floor(e * sizes[i]) draws before pass e; this lane has
    (floor(e * sizes[i]) + lane_positions[i]) // lanes of them. Within a pass the children are dealt
    by splits whose weights are the lane's counts in that pass, so all come out even at its end.

    Args:
        sizes: Draws of each child per pass over all lanes, >= 0: repetitions times samples, also
            fractions.
        key: Key of this choice; the phases of the lanes come from it.
        lane: The number of this lane, 0 to lanes - 1.
        lanes: The number of lanes.
        lane_positions: The number of this lane among the lanes as each child permutes them, 0 to
            lanes - 1: with that of `Shares`, counts here agree with the shares there.

    Raises:
        ValueError: If a size is negative or has a denominator above 2**40, if all are 0, or if
            this lane has more than 2**40 draws in a pass.
    """

    def __init__(
        self,
        sizes: Sequence[Fraction | int],
        *,
        key: int,
        lane: int,
        lanes: int,
        lane_positions: Sequence[int],
    ) -> None:
        weights = integer_weights(sizes)
        self.num_children = len(sizes)
        self._lane, self._lanes = lane, lanes
        self._living = np.flatnonzero(weights).astype(np.int32)
        self._splits = Splits([weight for weight in weights if weight], key)
        living = [Fraction(size) for size in sizes if size]
        self._total = sum(living, Fraction(0))
        self._check(living)
        self._numerators = np.array([size.numerator for size in living], np.int64)
        self._denominators = np.array([size.denominator for size in living], np.int64)
        self._positions = np.array(lane_positions, np.int64)[self._living]
        # A cache of a pure function: the pass last asked for, its begin and its end.
        self._pass = 0, 0, 0

    def _check(self, sizes: list[Fraction]) -> None:
        if self._total > LARGEST_TOTAL * self._lanes:
            raise ValueError(
                f"a lane must have at most 2**40 draws in a pass, "
                f"got {self._total} in {self._lanes} lanes"
            )
        if (largest := max(size.denominator for size in sizes)) > LARGEST_TOTAL:
            raise ValueError(f"a size must have a denominator of at most 2**40, got {largest}")

    def begin(self, epoch: int) -> int:
        """How many draws this lane makes before pass `epoch`."""
        return int(self._counts(np.array([epoch])).sum())

    def choose(self, start: int, count: int) -> NDArray[np.int32]:
        """The child of each of this lane's draws start .. start + count; int32 [count].

        In blocks of 4,096 with 3 to 1,000 children: 40 to 130 ns per draw where a pass has
        thousands of draws in this lane; 0.2 to 0.5 us where it has few, and 2 us where most
        children have none.

        Raises:
            OverflowError: If start + count exceeds 2**50, or 2**62 over all lanes.
        """
        check_draw(start + count, self._lanes)
        children = np.empty(count, np.int32)
        done = 0
        while done < count:
            part = self._block(start + done, count - done)
            children[done : done + len(part)] = self._living[part]
            done += len(part)
        return children

    def counts_before(self, start: int) -> NDArray[np.int64]:
        """How many of this lane's first `start` draws each child has had; int64 [children].

        Raises:
            OverflowError: If start exceeds 2**50, or 2**62 over all lanes.
        """
        check_draw(start, self._lanes)
        done, slots, phases = self._passes(self._pass_of(start)[0], 1)
        skipped = start - int(done[0].sum())
        drawn, _ = self._splits.advance(slots[0], phases[0], skipped)
        counts = np.zeros(self.num_children, np.int64)
        counts[self._living] = done[0] + self._splits.by_child(drawn)
        return counts

    def _block(self, start: int, count: int) -> Numbers:
        """Some of the draws from start, at least one: as many passes as fit in memory."""
        epoch, begin, end = self._pass_of(start)
        if (rest := min(count, end - start)) >= _MANY:
            _, slots, phases = self._passes(epoch, 1)
            _, remainders = self._splits.advance(slots[0], phases[0], start - begin)
            return self._splits.deal(slots[0], remainders, rest)[0]
        num = int(count * self._lanes / self._total) + 2
        done, slots, phases = self._passes(epoch, max(1, min(num, _CELLS // len(self._living))))
        begins = done.sum(axis=1)
        draws = np.arange(start, min(start + count, int(begins[-1])))
        rows = np.searchsorted(begins, draws, side="right") - 1
        return self._splits.descend(slots, phases, rows, draws - begins[rows])

    def _passes(self, epoch: int, num: int) -> tuple[Numbers, Numbers, Numbers]:
        """Counts before each of these passes and the one after, and their splits."""
        done = self._counts(np.arange(epoch, epoch + num + 1))
        slots = self._splits.weigh(np.diff(done, axis=0))
        return done, slots, self._splits.phases(slots, self._lane, self._lanes)

    def _counts(self, epochs: Numbers) -> Numbers:
        """This lane's draws of each living child before each of these passes, [passes, k]."""
        drawn = exact_quotient(epochs[:, np.newaxis], self._numerators, self._denominators, 0)
        return (drawn + self._positions) // self._lanes

    def _pass_of(self, draw: int) -> tuple[int, int, int]:
        """The pass of a draw, with its begin and end: the last that begins at it or before."""
        if not self._pass[1] <= draw < self._pass[2]:
            # Per child, counts differ from their mean by less than two draws.
            per_pass, slack = self._total / self._lanes, 2 * len(self._living)
            low = max(0, int((draw - slack) / per_pass))
            high = int((draw + slack) / per_pass) + 2
            epoch = low + bisect_right(range(low, high), draw, key=self.begin) - 1
            self._pass = epoch, self.begin(epoch), self.begin(epoch + 1)
        return self._pass
