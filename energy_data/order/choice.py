"""Which child of a blend a lane draws next, and how often each was drawn before: by weight."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from fractions import Fraction
from math import gcd, isfinite, lcm

import numpy as np
from numpy.typing import NDArray

from energy_data.order.splits import Splits

_SCALE = 1 << 32
LARGEST_TOTAL = 1 << 40
_LARGEST_DRAW = 1 << 50
_LARGEST_DRAWS = 1 << 62


def integer_weights(weights: Sequence[float | int | Fraction]) -> list[int]:
    """Integers in the proportion of the weights, without a common divisor.

    Exact where such integers have a sum of at most 2**32: 0.7, 0.2, 0.1 are 7, 2, 1; a float counts
    as the decimal number that it prints as, or a fraction with a small denominator, like 1 / 3.
    Else rounded to a sum of about 2**32, and to no less than 1. A weight of 0 stays 0. 15 us each.

    Raises:
        ValueError: If a weight is negative, infinite or not a number, or all are 0.
    """
    for number, weight in enumerate(weights):
        if not isfinite(weight) or weight < 0:
            raise ValueError(f"weight must be finite and >= 0, got {weight} for child {number}")
    exact = [_fraction(weight) for weight in weights]
    total = sum(exact)
    if not total:
        raise ValueError(f"some weight must be > 0, got {len(weights)} weights that are all 0")
    denominator = lcm(*(weight.denominator for weight in exact))
    integers = [int(weight * denominator) for weight in exact]
    if sum(integers) > gcd(*integers) * _SCALE:
        scale = _SCALE / total
        integers = [max(1, round(weight * scale)) if weight else 0 for weight in exact]
    common = gcd(*integers)
    return [number // common for number in integers]


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
        self._begin(lane)

    def _begin(self, lane: int) -> None:
        self._phases = self._splits.phases(self._slots, lane, self._lanes)
        # A cache of a pure function: a draw, and the remainders before it.
        self._next = 0, self._phases

    def in_lane(self, lane: int) -> WeightedChoice:
        """The same choice in another lane; they share their tables."""
        other = copy(self)
        other._begin(lane)
        return other

    def choose(self, start: int, count: int) -> NDArray[np.int32]:
        """The child of each of this lane's draws start .. start + count; int32 [count].

        15 to 60 ns per draw in blocks of 4,096 with 3 to 1,000 children; 100 us more where start is
        not the end of the last call.

        Raises:
            OverflowError: If start + count exceeds 2**50.
        """
        children: NDArray[np.int32] = self.choose_beside((), start, count)[0]
        return children

    def choose_beside(
        self, others: Sequence[WeightedChoice], start: int, count: int
    ) -> NDArray[np.int32]:
        """`choose` of this lane and of others that `in_lane` made, int32 [1 + others, count].

        Costs less than one by one: a call of numpy costs as much as some hundred draws.
        """
        check_draw(start + count)
        lanes = (self, *others)
        remainders = np.stack([lane._remainders(start) for lane in lanes])
        child, remainders = self._splits.deal_in_lanes(self._slots, remainders, count)
        for lane, after in zip(lanes, remainders, strict=True):
            lane._next = start + count, after
        return self._living[child]

    def _remainders(self, start: int) -> NDArray[np.int64]:
        known, remainders = self._next
        return remainders if known == start else self._advance(start)[1]

    def before(self, start: int) -> NDArray[np.int64]:
        """How many of this lane's first `start` draws each child has had; int64 [children].

        Raises:
            OverflowError: If start exceeds 2**50.
        """
        counts = np.zeros(self.num_children, np.int64)
        counts[self._living] = self._splits.by_child(self._advance(start)[0])
        return counts

    def _advance(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        check_draw(count)
        return self._splits.advance(self._slots, self._phases, count)


def positive(weights: Sequence[int]) -> tuple[NDArray[np.int32], list[int]]:
    """The children with a weight, and their weights without a common divisor."""
    living = [child for child, weight in enumerate(weights) if weight > 0]
    if not living:
        raise ValueError(f"some weight must be > 0, got {list(weights)}")
    common = gcd(*(weights[child] for child in living))
    shares = [weights[child] // common for child in living]
    if sum(shares) > LARGEST_TOTAL:
        raise ValueError(f"the sum of weights must be at most 2**40, got {sum(shares)}")
    return np.array(living, np.int32), shares


def check_draw(draw: int, lanes: int = 1) -> None:
    """Raise OverflowError for a draw so late that counts would no longer be exact."""
    if draw > _LARGEST_DRAW or draw * lanes >= _LARGEST_DRAWS:
        raise OverflowError(
            f"draw {draw} of one of {lanes} lanes is out of reach: "
            f"it must be at most 2**50, and times the lanes below 2**62"
        )


def _fraction(weight: float | int | Fraction) -> Fraction:
    if isinstance(weight, int | Fraction):
        return Fraction(weight)
    simple = Fraction(float(weight)).limit_denominator(1_000_000)
    return simple if float(simple) == weight else Fraction(str(weight))
