"""Which child of a blend a lane draws next, by weight, and how often each was drawn before.

`WeightedChoice` has constant weights. The other two deal segment by segment, each with constant
weights: `ExhaustingChoice` begins a segment when a child ends, `ScheduledChoice` where weights
change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from energy_data.core.arrays import Int64s
from energy_data.order.splits import LARGEST_PRODUCT, Splits, check_draw, exact_quotient, positive

Place = Callable[[Fraction], int]
"""Number of samples of the run -> how many of them are draws of one choice in one lane."""

_LARGEST_FINITE = 1 << 48
_ENDLESS = 1 << 62
# One segment of so many is kept, to start from when earlier draws are asked for.
_STRIDE = 32
_POINT = 16  # bits behind the point of a deviation


class WeightedChoice:
    """The children of one lane's draws, by weight, for ever.

    A lane keeps the mixture by itself at every prefix, to less than 2 draws in all that was
    measured; lanes have phases of their own, so that they keep it together as well.

    Args:
        weights: Integer weights of the children; 0 is never drawn. Only their proportion counts.
        key: Key of this choice; the phases of the lanes come from it.
        lane: The number of this lane, 0 to lanes - 1.
        lanes: The number of lanes.

    Raises:
        ValueError: If the weights, without a common divisor, have a sum above 2**40, or are all 0.
    """

    def __init__(self, weights: Sequence[int], *, key: int, lane: int, lanes: int) -> None:
        self.num_children = len(weights)
        self._living, shares = positive(weights)
        self._splits = Splits(shares, key)
        self._slots = self._splits.weigh(np.array(shares, np.int64))
        self._lanes = lanes
        self._phases = self._splits.phases(self._slots, lane, lanes)

    def in_lane(self, lane: int) -> WeightedChoice:
        """Return the same choice in another lane; they share their tables."""
        other = copy(self)
        other._phases = self._splits.phases(self._slots, lane, self._lanes)
        return other

    def choose(self, start: int, count: int) -> NDArray[np.int32]:
        """Return the child of each of this lane's draws start .. start + count; int32 [count].

        20 to 80 ns per draw in blocks of 4,096 with 3 to 1,000 children.

        Raises:
            OverflowError: If start + count exceeds 2**50.
        """
        check_draw(start + count)
        _, remainders = self._splits.advance(self._slots, self._phases, start)
        return self._living[self._splits.deal(self._slots, remainders, count)]

    def counts_before(self, start: int) -> Int64s:
        """Return how many of the first `start` draws each child has had; int64 [children].

        Raises:
            OverflowError: If start exceeds 2**50.
        """
        check_draw(start)
        drawn, _ = self._splits.advance(self._slots, self._phases, start)
        counts = np.zeros(self.num_children, np.int64)
        counts[self._living] = self._splits.by_child(drawn)
        return counts


@dataclass(frozen=True, slots=True)
class Segment:
    """Draws with constant weights, and the splits at the first of them."""

    number: int
    start: int
    end: int
    drawn: Int64s  # earlier draws of each child, int64 [children]
    living: NDArray[np.int32]  # the children of the splits
    splits: Splits
    slots: Int64s
    remainders: Int64s

    def advance(self, count: int) -> tuple[Int64s, Int64s]:
        """Return the draws of each child up to draw `count` of the segment, and the remainders."""
        slots, remainders = self.splits.advance(self.slots, self.remainders, count)
        drawn = self.drawn.copy()
        drawn[self.living] += self.splits.by_child(slots)
        return drawn, remainders


class SegmentedChoice(ABC):
    """The children of one lane's draws, dealt segment by segment.

    Segments are computed when their draws are asked for, each from the one before. The last one
    and every 32nd are cached.
    """

    total = _ENDLESS  # draws

    def __init__(self, num_children: int) -> None:
        self.num_children = num_children
        self._segment: Segment | None = None
        self._kept: list[Segment] = []

    @abstractmethod
    def _after(self, segment: Segment | None) -> Segment:
        """Return the segment after this one; the first one after None."""

    def _check(self, draw: int) -> None:
        check_draw(draw)

    def choose(self, start: int, count: int) -> NDArray[np.int32]:
        """Return the child of each of this lane's draws start .. start + count; int32 [count].

        80 ns per draw in blocks of 4,096 inside a segment, and 0.1 to 0.5 ms for each segment.

        Raises:
            OverflowError: If start + count exceeds 2**50.
            ValueError: If start + count exceeds `total`.
        """
        self._check(start + count)
        children = np.empty(count, np.int32)
        done = 0
        while done < count:
            segment = self._find(start + done)
            num = min(count - done, segment.end - start - done)
            _, remainders = segment.advance(start + done - segment.start)
            child = segment.splits.deal(segment.slots, remainders, num)
            children[done : done + num] = segment.living[child]
            done += num
        return children

    def counts_before(self, start: int) -> Int64s:
        """Return how many of the lane's first `start` draws each child has had; int64 [children].

        Raises:
            OverflowError: If start exceeds 2**50.
            ValueError: If start exceeds `total`.
        """
        self._check(start)
        segment = self._find(start)
        return segment.advance(start - segment.start)[0]

    def _find(self, draw: int) -> Segment:
        """Return the segment of a draw; the last one for the draw after the end."""
        if not self._kept:
            self._kept = [self._after(None)]
        kept = self._kept[bisect_right(self._kept, draw, key=lambda kept: kept.start) - 1]
        segment = self._segment
        if segment is None or draw < segment.start or kept.start > segment.start:
            segment = kept
        while draw >= segment.end < self.total:
            segment = self._after(segment)
            if segment.number == _STRIDE * len(self._kept):
                self._kept.append(segment)
        self._segment = segment
        return segment


class ExhaustingChoice(SegmentedChoice):
    """The children of one lane's draws, by weight, until each has had its count.

    A child that has had its count leaves its share to the others. A segment lasts until the next
    child ends, and is split like a `WeightedChoice` over the children that are left. A segment
    costs 0.5 ms at 1,000 children.

    Args:
        weights: Integer weights of the children; one with weight 0 is never drawn.
        counts: Draws that each child has in this lane; all of them below 2**48.
        key: Key of this choice; the phases of the lanes come from it.
        lane: The number of this lane, 0 to lanes - 1.
        lanes: The number of lanes.

    Raises:
        ValueError: If all weights are 0, or weights or counts have too large a sum.
    """

    def __init__(
        self, weights: Sequence[int], counts: Sequence[int], *, key: int, lane: int, lanes: int
    ) -> None:
        super().__init__(len(weights))
        drawn = [count if weight else 0 for weight, count in zip(weights, counts, strict=True)]
        self.total = sum(drawn)
        if self.total >= _LARGEST_FINITE:
            raise ValueError(f"a lane must have fewer than 2**48 draws, got {self.total}")
        # Without any draw, one child stands for all: it is never asked for.
        lasting = [w if count else 0 for w, count in zip(weights, drawn, strict=True)]
        self._living, shares = positive(lasting if self.total else weights)
        self._counts = np.array(drawn, np.int64)
        self._splits = Splits(shares, key)
        self._slots = self._splits.weigh(np.array(shares, np.int64))
        self._phases = self._splits.phases(self._slots, lane, lanes)

    def _check(self, draw: int) -> None:
        if draw > self.total:
            raise ValueError(f"a lane has {self.total} draws in all, draw {draw} was asked for")

    def _after(self, segment: Segment | None) -> Segment:
        if segment is None:
            nothing = np.zeros(self.num_children, np.int64)
            return self._segment_from(0, 0, nothing, self._slots, self._phases)
        drawn, remainders = segment.advance(segment.end - segment.start)
        before, after = ((self._counts - had)[self._living] for had in (segment.drawn, drawn))
        ended = int(((after == 0) & (before > 0)).argmax())
        slots, remainders = self._splits.without(segment.slots, remainders, ended)
        return self._segment_from(segment.number + 1, segment.end, drawn, slots, remainders)

    def _segment_from(
        self, number: int, start: int, drawn: Int64s, slots: Int64s, remainders: Int64s
    ) -> Segment:
        """Return the segment that begins here and ends with the first child without draws left."""
        left = (self._counts - drawn)[self._living]
        weights = np.maximum(self._splits.by_child(slots), 1)
        # A child that is so far away cannot be the first, and would not be exact.
        near = (left > 0) & (left * (int(slots[-1]) / weights) < LARGEST_PRODUCT)
        last = self._splits.when(slots, remainders, np.where(near, left - 1, 0))
        end = min(start + int(last[near].min(initial=LARGEST_PRODUCT)) + 1, self.total)
        living, splits = self._living, self._splits
        return Segment(number, start, end, drawn, living, splits, slots, remainders)


@frozen(eq=False)
class Stretch:
    """A part of the axis, cut into pieces of constant weights."""

    start: Fraction  # in samples of the run
    end: Fraction | None  # None: it is the last
    weights: Int64s  # of each child in each piece, [pieces, children]

    def begin(self, piece: int) -> Fraction:
        """Where a piece begins."""
        if self.end is None:
            return self.start
        return self.start + (self.end - self.start) * piece / len(self.weights)


@dataclass(frozen=True, slots=True)
class _Piece(Segment):
    """A segment of a scheduled choice."""

    ahead: Int64s  # how far each child is ahead of its integral, in 2**-16 draws, int64 [k]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The splits of one stretch."""

    living: NDArray[np.int32]  # children that have a weight
    splits: Splits
    slots: Int64s  # of each piece, [pieces, 2 S + 1]
    phases: Int64s  # of this lane, [pieces, S]


class ScheduledChoice(SegmentedChoice):
    """The children of one lane's draws, by weights that change at places of the run.

    Every piece of constant weights is dealt like a `WeightedChoice`, and begins where the lane is:
    with a the draws that a side of a split is ahead of its integral, b those of both sides, and r
    its share, the phase of the split moves by r b - a, as far as it goes. So what one piece
    leaves over the next makes up for, and over the whole run each child has had the integral of its
    share, to less than 2 draws in most that was measured, and 3 in all of it. Draws depend on
    weights so far only: the order before a knot does not change with what comes after it.

    Pieces are computed when draws of them are asked for: 0.1 ms each with 10 children, 0.4 with
    1,000. With a single stretch, it is the `WeightedChoice` of that.

    Args:
        stretches: Weights along the run, of `schedule.stretches`.
        place: Which draw of this choice a place of the run is; rises with it.
        key: Key of this choice; the phases of the lanes come from it.
        lane: The number of this lane, 0 to lanes - 1.
        lanes: The number of lanes.
    """

    def __init__(
        self, stretches: Sequence[Stretch], place: Place, *, key: int, lane: int, lanes: int
    ) -> None:
        super().__init__(stretches[0].weights.shape[1])
        self._stretches, self._place = stretches, place
        self._key, self._lane, self._lanes = key, lane, lanes
        self._pieces = [
            (number, piece)
            for number, stretch in enumerate(stretches)
            for piece in range(len(stretch.weights))
        ]
        self._shape: tuple[int, _Shape] | None = None  # of the stretch asked for last

    def _after(self, segment: Segment | None) -> Segment:
        if segment is None:
            nothing = np.zeros(self.num_children, np.int64)
            return self._segment_from(0, 0, nothing, nothing)
        assert isinstance(segment, _Piece)
        drawn, ahead, living = segment.drawn, segment.ahead, segment.living
        if num := segment.end - segment.start:
            total = int(segment.slots[-1])
            weights = segment.splits.by_child(segment.slots)
            drawn, _ = segment.advance(num)
            whole = exact_quotient(np.full(len(living), num), weights, total, 0)
            # Wraps around where the products are large, and back in the difference.
            part = ((num * weights - whole * total) << _POINT) // total
            ahead = ahead.copy()
            ahead[living] += (((drawn - segment.drawn)[living] - whole) << _POINT) - part
        return self._segment_from(segment.number + 1, segment.end, drawn, ahead)

    def _segment_from(self, number: int, start: int, drawn: Int64s, ahead: Int64s) -> Segment:
        """The segment of a piece that begins with draw `start`."""
        stretch, piece = self._pieces[number]
        shape = self._shape_of(stretch)
        slots, remainders = shape.slots[piece], shape.phases[piece]
        if number:
            behind = shape.splits.weigh(ahead[shape.living])
            remainders = shape.splits.moved(slots, remainders, behind, _POINT)
        end = _ENDLESS
        if number + 1 < len(self._pieces):
            following, at = self._pieces[number + 1]
            end = max(start, self._place(self._stretches[following].begin(at)))
        living, splits = shape.living, shape.splits
        return _Piece(number, start, end, drawn, living, splits, slots, remainders, ahead)

    def _shape_of(self, stretch: int) -> _Shape:
        if self._shape is None or self._shape[0] != stretch:
            weights = self._stretches[stretch].weights
            alone = len(weights) == 1
            mean = weights[0] if alone else -(-weights.sum(axis=0) // len(weights))
            living, shares = positive(mean.tolist())
            splits = Splits(shares, self._key)
            slots = splits.weigh(np.array([shares]) if alone else weights[:, living])
            phases = splits.phases(slots, self._lane, self._lanes)
            self._shape = stretch, _Shape(living, splits, slots, phases)
        return self._shape[1]
