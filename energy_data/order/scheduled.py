"""Which child of a blend a lane draws next where weights change over the run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from energy_data.order.choice import check_draw, positive
from energy_data.order.schedule import Stretch
from energy_data.order.splits import Numbers, Splits, exact_quotient

Place = Callable[[Fraction], int]
"""Samples of the run -> how many draws of one choice in one lane are among them."""

_ENDLESS = 1 << 62
# Pieces between two that are kept, to start from when draws before the last ones are asked for.
_STRIDE = 32
_POINT = 16  # bits behind the point of a deviation


@dataclass(frozen=True, slots=True)
class _Segment:
    """The draws of one piece, and what the splits are at its start."""

    number: int
    start: int
    end: int
    drawn: Numbers  # draws of each child before, int64 [k]
    ahead: Numbers  # how far each child is ahead of its integral, in 2**-16 draws, int64 [k]
    shape: _Shape
    slots: Numbers
    remainders: Numbers


@dataclass(frozen=True, slots=True)
class _Shape:
    """The splits of one stretch."""

    living: NDArray[np.int32]  # children that have a weight
    splits: Splits
    slots: Numbers  # of each piece, [pieces, 2 S + 1]
    phases: Numbers  # of this lane, [pieces, S]


class ScheduledChoice:
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
        self.num_children = stretches[0].weights.shape[1]
        self._stretches, self._place = stretches, place
        self._key, self._lane, self._lanes = key, lane, lanes
        self._pieces = [
            (number, piece)
            for number, stretch in enumerate(stretches)
            for piece in range(len(stretch.weights))
        ]
        # Caches of pure functions: the shape of a stretch, the segment last asked for, every 32nd.
        self._shape: tuple[int, _Shape] | None = None
        self._segment: _Segment | None = None
        self._kept: list[_Segment] = []

    def choose(self, start: int, count: int) -> NDArray[np.int32]:
        """The child of each of this lane's draws start .. start + count; int32 [count].

        As a `WeightedChoice` inside a piece, and 0.1 to 0.4 ms for each piece.

        Raises:
            OverflowError: If start + count exceeds 2**50.
        """
        check_draw(start + count)
        children = np.empty(count, np.int32)
        done = 0
        while done < count:
            segment = self._find(start + done)
            skipped = start + done - segment.start
            num = min(count - done, segment.end - start - done)
            splits = segment.shape.splits
            _, remainders = splits.advance(segment.slots, segment.remainders, skipped)
            child, _ = splits.deal(segment.slots, remainders, num)
            children[done : done + num] = segment.shape.living[child]
            done += num
        return children

    def before(self, start: int) -> NDArray[np.int64]:
        """How many of this lane's first `start` draws each child has had; int64 [children].

        Raises:
            OverflowError: If start exceeds 2**50.
        """
        check_draw(start)
        segment = self._find(start)
        counts = segment.drawn.copy()
        counts[segment.shape.living] += _dealt(segment, start - segment.start)
        return counts

    def _find(self, draw: int) -> _Segment:
        """The segment of a draw."""
        if not self._kept:
            nothing = np.zeros(self.num_children, np.int64)
            self._kept = [self._segment_from(0, 0, nothing, nothing)]
        kept = self._kept[bisect_right(self._kept, draw, key=lambda kept: kept.start) - 1]
        segment = self._segment
        if segment is None or draw < segment.start or kept.start > segment.start:
            segment = kept
        while draw >= segment.end:
            segment = self._after(segment)
            if segment.number == _STRIDE * len(self._kept):
                self._kept.append(segment)
        self._segment = segment
        return segment

    def _after(self, segment: _Segment) -> _Segment:
        drawn, ahead = segment.drawn, segment.ahead
        if num := segment.end - segment.start:
            living, total = segment.shape.living, int(segment.slots[-1])
            weights = segment.shape.splits.by_child(segment.slots)
            counts = _dealt(segment, num)
            whole = exact_quotient(np.full(len(living), num), weights, total, 0)
            # Wraps around where the products are large, and back in the difference.
            part = ((num * weights - whole * total) << _POINT) // total
            drawn, ahead = drawn.copy(), ahead.copy()
            drawn[living] += counts
            ahead[living] += ((counts - whole) << _POINT) - part
        return self._segment_from(segment.number + 1, segment.end, drawn, ahead)

    def _segment_from(self, number: int, start: int, drawn: Numbers, ahead: Numbers) -> _Segment:
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
        return _Segment(number, start, end, drawn, ahead, shape, slots, remainders)

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


def _dealt(segment: _Segment, count: int) -> Numbers:
    """The draws of each living child among the first `count` of a segment."""
    splits = segment.shape.splits
    return splits.by_child(splits.advance(segment.slots, segment.remainders, count)[0])
