"""Which child a lane draws next where counts are exact: in every batch, or in every pass."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import count as count_from
from math import gcd

import numpy as np
from numpy.typing import NDArray

from energy_data.core.arrays import Int64s
from energy_data.core.keys import key as keyed
from energy_data.core.keys import mix
from energy_data.order.grains import Grains
from energy_data.order.permutation import permute
from energy_data.order.splits import (
    LARGEST_TOTAL,
    Splits,
    check_draw,
    exact_quotient,
    integer_weights,
    positive,
)
from energy_data.order.weighted import WeightedChoice

_GOLDEN = 0.6180339887498949
_TRIED = 100
# Weights of an `EpochizedChoice` that are computed at once: passes times children.
_CELLS = 1 << 18


class QuotaChoice:
    """The children of one lane's draws, batch by batch, with exact quotas in each batch.

    Of the `size` draws of a batch, a child of weight w of W has its quota size * w / W rounded down
    or up, never else. Who is rounded up rotates: the fractions of the quotas lie side by side on a
    line, and a comb with teeth 1 apart picks those it hits (systematic sampling: Madow, 1944). From
    batch to batch the comb moves by a fraction of a tooth that spreads well, in this lane and over
    all of them, so that counts stay near their quotas at any time: at most 6.8 draws off in 33,000
    random choices, in one lane and in all together. After a full round of D batches (W without the
    factors that it has in common with the quotas) they are exact.

    Within a batch the draws are permuted.

    Args:
        weights: Integer weights of the children; 0 is never drawn. Only their proportion counts.
        size: Draws of a batch.
        key: Key of this choice.
        lane: The number of this lane, 0 to lanes - 1.
        lanes: The number of lanes.

    Raises:
        ValueError: If size is not 1 to 2**21, the weights, without a common divisor, have a sum
            above 2**40, or all are 0.
    """

    def __init__(
        self, weights: Sequence[int], size: int, *, key: int, lane: int, lanes: int
    ) -> None:
        if not 1 <= size <= 1 << 21:
            raise ValueError(f"a batch must have 1 to 2**21 draws, got {size}")
        self.num_children, self.size = len(weights), size
        self._living, shares = positive(weights)
        total = sum(shares)
        whole, parts = zip(*(divmod(size * share, total) for share in shares), strict=True)
        common = gcd(total, *parts)
        self._round = total // common
        self._ends = np.array([part // common for part in parts], np.int64).cumsum()
        self._whole = np.array(whole, np.int64).cumsum()
        self._turn = _even_turn(self._round, lanes)
        spread = int(permute(np.int64(lane), lanes, np.uint64(keyed(key, "phase"))))
        self._phase = (2 * spread + 1) * self._round // (2 * lanes)
        self._key = np.uint64(keyed(key, "within", lane))

    def choose(self, start: int, count: int) -> NDArray[np.int32]:
        """The child of each of this lane's draws start .. start + count; int32 [count].

        Some 0.2 us per draw with 10 children, and in proportion to their number.

        Raises:
            OverflowError: If start + count exceeds 2**50.
        """
        check_draw(start + count)
        batch, place = np.divmod(np.arange(start, start + count), self.size)
        if not count:
            return np.empty(0, np.int32)
        rank = permute(place, self.size, mix(self._key, batch))
        ends = self._ends_in(np.arange(batch[0], batch[-1] + 1))
        found = (rank[:, np.newaxis] >= ends[batch - batch[0], :-1]).sum(axis=1)
        children: NDArray[np.int32] = self._living[found]
        return children

    def counts_before(self, start: int) -> Int64s:
        """How many of this lane's first `start` draws each child has had; int64 [children].

        20 us per child.

        Raises:
            OverflowError: If start exceeds 2**50.
        """
        check_draw(start)
        batches, rest = divmod(start, self.size)
        ends = [
            batches * int(whole) + self._hits(batches, int(end))
            for whole, end in zip(self._whole, self._ends, strict=True)
        ]
        counts = np.zeros(self.num_children, np.int64)
        counts[self._living] = np.diff(np.array(ends, np.int64), prepend=0)
        return counts + np.bincount(self.choose(start - rest, rest), minlength=self.num_children)

    def _ends_in(self, batches: Int64s) -> Int64s:
        """Where the draws of each child end in these batches before permuting, [batches, k]."""
        turns = np.array([self._turned(batch) for batch in batches.tolist()], np.int64)
        return self._whole + (self._ends + turns[:, np.newaxis]) // self._round

    def _turned(self, batch: int) -> int:
        return (batch * self._turn + self._phase) % self._round

    def _hits(self, batches: int, end: int) -> int:
        """How many teeth lie before `end` in the first so many batches."""
        moved = floor_sum(batches, self._round, self._turn, end + self._phase)
        return moved - floor_sum(batches, self._round, self._turn, self._phase)


class WholeBatches:
    """One child for each batch, by the weights of a choice over batches."""

    def __init__(self, choice: WeightedChoice, size: int) -> None:
        self.choice, self.size, self.num_children = choice, size, choice.num_children

    def choose(self, start: int, count: int) -> NDArray[np.int32]:
        """The child of each of this lane's draws start .. start + count; int32 [count]."""
        first = start // self.size
        batches = -(-(start + count) // self.size) - first
        children = np.repeat(self.choice.choose(first, batches), self.size)
        return children[start - first * self.size :][:count]

    def counts_before(self, start: int) -> Int64s:
        """How many of this lane's first `start` draws each child has had; int64 [children]."""
        batches, rest = divmod(start, self.size)
        counts = self.choice.counts_before(batches) * self.size
        return counts + np.bincount(self.choose(start - rest, rest), minlength=self.num_children)


class EpochizedChoice:
    """The children of one lane's draws, pass after pass, with exact counts in each.

    Over all lanes, child i has floor(e * sizes[i]) draws before pass e; this lane has those that
    `grains` deals to it. Within a pass the children are dealt by splits whose weights are the
    lane's counts in that pass, so all come out even at its end.

    Args:
        sizes: Draws of each child per pass over all lanes, >= 0: repetitions times samples, also
            fractions.
        key: Key of this choice; the phases of the lanes come from it.
        lane: The number of this lane, 0 to lanes - 1.
        lanes: The number of lanes.
        grains: How the draws of each child are dealt to this lane: of a leaf, as its `Shares` has
            them, so that a pass is an epoch of the leaf.

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
        grains: Grains,
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
        self._grains, self._slack = grains, 2 * int(grains.widest[self._living].sum())

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

        In blocks of 4,096 with 3 to 1,000 children: 0.2 to 0.5 us per draw, 2 us where a pass has
        no draws of most children in this lane.

        Raises:
            OverflowError: If start + count exceeds 2**50, or 2**62 over all lanes.
        """
        check_draw(start + count, self._lanes)
        parts = [np.empty(0, np.int32)]
        done = 0
        while done < count:
            parts.append(self._living[self._block(start + done, count - done)])
            done += len(parts[-1])
        return np.concatenate(parts)

    def counts_before(self, start: int) -> Int64s:
        """How many of this lane's first `start` draws each child has had; int64 [children].

        Raises:
            OverflowError: If start exceeds 2**50, or 2**62 over all lanes.
        """
        check_draw(start, self._lanes)
        done, slots, phases = self._passes(self._pass_of(start), 1)
        skipped = start - int(done[0].sum())
        drawn, _ = self._splits.advance(slots[0], phases[0], skipped)
        counts = np.zeros(self.num_children, np.int64)
        counts[self._living] = done[0] + self._splits.by_child(drawn)
        return counts

    def _block(self, start: int, count: int) -> Int64s:
        """Some of the draws from start, at least one: as many passes as fit in memory."""
        num = int(count * self._lanes / self._total) + 2
        num = max(1, min(num, _CELLS // len(self._living)))
        done, slots, phases = self._passes(self._pass_of(start), num)
        begins = done.sum(axis=1)
        draws = np.arange(start, min(start + count, int(begins[-1])))
        rows = np.searchsorted(begins, draws, side="right") - 1
        return self._splits.descend(slots, phases, rows, draws - begins[rows])

    def _passes(self, epoch: int, num: int) -> tuple[Int64s, Int64s, Int64s]:
        """Counts before each of these passes and the one after, and their splits."""
        done = self._counts(np.arange(epoch, epoch + num + 1))
        slots = self._splits.weigh(np.diff(done, axis=0))
        return done, slots, self._splits.phases(slots, self._lane, self._lanes)

    def _counts(self, epochs: Int64s) -> Int64s:
        """This lane's draws of each living child before each of these passes, [passes, k]."""
        drawn = exact_quotient(epochs[:, np.newaxis], self._numerators, self._denominators, 0)
        return self._grains.counts(np.broadcast_to(self._living, drawn.shape), drawn)

    def _pass_of(self, draw: int) -> int:
        """The pass of a draw: the last that begins at or before it."""
        # Per child, counts differ from their mean by less than two grains.
        per_pass = self._total / self._lanes
        low = max(0, int((draw - self._slack) / per_pass))
        high = int((draw + self._slack) / per_pass) + 2
        return low + bisect_right(range(low, high), draw, key=self.begin) - 1


def floor_sum(count: int, divisor: int, slope: int, offset: int) -> int:
    """The sum of (slope * i + offset) // divisor over 0 <= i < count, exact, in O(log) steps.

    Euclid's algorithm on the lattice points below a line.
    """
    total = 0
    while count > 0:
        rise, slope = divmod(slope, divisor)
        base, offset = divmod(offset, divisor)
        total += rise * (count * (count - 1) // 2) + base * count
        top = slope * count + offset
        if top < divisor:
            break
        count, offset = divmod(top, divisor)
        divisor, slope = slope, divisor
    return total


def _even_turn(round_: int, lanes: int) -> int:
    """The turn that spreads best of those tried, in one lane and over all of them.

    How far counts are off is bounded by the sum of the partial quotients of turn / round. With
    lanes spread evenly, all of them together turn lanes times as fast. A turn without a common
    factor comes through all places of the round.
    """
    steps = [round(round_ * (n * _GOLDEN % 1)) for n in range(1, _TRIED)]
    turns = [next(turn for turn in count_from(step) if gcd(turn, round_) == 1) for step in steps]
    return min(
        turns, key=lambda turn: _unevenness(turn, round_) + _unevenness(turn * lanes, round_)
    )


def _unevenness(turn: int, round_: int) -> int:
    """The sum of the partial quotients of a fraction."""
    total, turn = 0, turn % round_
    while turn:
        quotient, rest = divmod(round_, turn)
        total += quotient
        round_, turn = turn, rest
    return total
