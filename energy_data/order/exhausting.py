"""Which child of a finite blend a lane draws next: by weight while they last."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from energy_data.order.choice import positive
from energy_data.order.splits import LARGEST_PRODUCT, Numbers, Splits

_LARGEST_TOTAL = 1 << 48
# Segments between two that are kept, to start from when draws before the last ones are asked for.
_STRIDE = 32


@dataclass(frozen=True, slots=True)
class _Segment:
    """The draws from one child's end to the next one's, and what the splits are at its start."""

    number: int
    start: int
    end: int
    left: Numbers  # draws that each child has left at the start, int64 [k]
    slots: Numbers
    remainders: Numbers


class ExhaustingChoice:
    """The children of one lane's draws, by weight, until each has had its count.

    A child that has had its count leaves its share to the others. A segment lasts until the next
    child ends, and is split like a `WeightedChoice` over those that are left; segments are computed
    when draws of them are asked for, 0.5 ms each at 1,000 children.

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
        self.num_children = len(weights)
        drawn = [count if weight else 0 for weight, count in zip(weights, counts, strict=True)]
        self.total = sum(drawn)
        if self.total >= _LARGEST_TOTAL:
            raise ValueError(f"a lane must have fewer than 2**48 draws, got {self.total}")
        # Without any draw, one child stands for all: nobody will ask it.
        lasting = [w if count else 0 for w, count in zip(weights, drawn, strict=True)]
        self._living, shares = positive(lasting if self.total else weights)
        self._splits = Splits(shares, key)
        slots = self._splits.weigh(np.array(shares, np.int64))
        phases = self._splits.phases(slots, lane, lanes)
        left = np.array(drawn, np.int64)[self._living]
        # Caches of a pure function: the segment last asked for, and every 32nd.
        self._segment = self._segment_from(0, 0, left, slots, phases)
        self._kept = [self._segment]

    def choose(self, start: int, count: int) -> NDArray[np.int32]:
        """The child of each of this lane's draws start .. start + count; int32 [count].

        80 ns per draw in blocks of 4,096 inside a segment.

        Raises:
            ValueError: If start + count exceeds `total`.
        """
        self._check(start + count)
        children = np.empty(count, np.int32)
        done = 0
        while done < count:
            segment = self._find(start + done)
            skipped = start + done - segment.start
            num = min(count - done, segment.end - start - done)
            _, remainders = self._splits.advance(segment.slots, segment.remainders, skipped)
            child, _ = self._splits.deal(segment.slots, remainders, num)
            children[done : done + num] = self._living[child]
            done += num
        return children

    def before(self, start: int) -> NDArray[np.int64]:
        """How many of this lane's first `start` draws each child has had; int64 [children].

        Raises:
            ValueError: If start exceeds `total`.
        """
        self._check(start)
        segment = self._find(start)
        skipped = start - segment.start
        drawn, _ = self._splits.advance(segment.slots, segment.remainders, skipped)
        counts = np.zeros(self.num_children, np.int64)
        counts[self._living] = self._kept[0].left - segment.left + self._splits.by_child(drawn)
        return counts

    def _check(self, draw: int) -> None:
        if draw > self.total:
            raise ValueError(f"a lane has {self.total} draws in all, draw {draw} was asked for")

    def _find(self, draw: int) -> _Segment:
        """The segment of a draw; the last one for the draw after the end."""
        segment = self._segment
        kept = self._kept[bisect_right(self._kept, draw, key=lambda kept: kept.start) - 1]
        if draw < segment.start or kept.start > segment.start:
            segment = kept
        while draw >= segment.end < self.total:
            segment = self._after(segment)
            if segment.number == _STRIDE * len(self._kept):
                self._kept.append(segment)
        self._segment = segment
        return segment

    def _after(self, segment: _Segment) -> _Segment:
        slots = segment.slots
        num = segment.end - segment.start
        drawn, remainders = self._splits.advance(slots, segment.remainders, num)
        left = segment.left - self._splits.by_child(drawn)
        ended = (left == 0) & (segment.left > 0)
        slots, remainders = self._splits.without(slots, remainders, int(ended.argmax()))
        return self._segment_from(segment.number + 1, segment.end, left, slots, remainders)

    def _segment_from(
        self, number: int, start: int, left: Numbers, slots: Numbers, remainders: Numbers
    ) -> _Segment:
        """The segment that begins here; it ends with the first child that has no draws left."""
        weights = np.maximum(self._splits.by_child(slots), 1)
        # A child that is so far away cannot be the first, and would not be exact.
        near = (left > 0) & (left * (int(slots[-1]) / weights) < LARGEST_PRODUCT)
        last = self._splits.when(slots, remainders, np.where(near, left - 1, 0))
        end = start + int(last[near].min(initial=LARGEST_PRODUCT)) + 1
        return _Segment(number, start, min(end, self.total), left, slots, remainders)
