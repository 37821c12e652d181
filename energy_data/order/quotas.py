"""How much of a step each of its shares holds, where steps are cut into shares of equal size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def scheduled(target: Sequence[tuple[int, int]], step: int) -> int:
    """Return what holds at `step`: target is pairs (step, value from then on), from step 0."""
    return target[bisect_right(target, step, key=lambda pair: pair[0]) - 1][1]


def quota(share: int, target: Sequence[tuple[int, int]], shares: int) -> int:
    """Return how much share number `share` of the run holds; `shares` of them make a step.

    Those of one step differ by one at most, the larger first, and add up to its target.
    """
    step, place = divmod(share, shares)
    whole, rest = divmod(scheduled(target, step), shares)
    return whole + (place < rest)
