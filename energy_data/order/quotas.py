"""How much of a step each of its shares holds, where steps are cut into shares of equal size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def scheduled(target: Sequence[tuple[int, int]], step: int) -> int:
    """Return what holds at `step`: target is pairs (step, value from then on), from step 0."""
    return target[bisect_right(target, step, key=lambda pair: pair[0]) - 1][1]


def seen_from(target: Sequence[tuple[int, int]], step: int) -> tuple[tuple[int, int], ...]:
    """Return the target with steps counted from `step`; negative: from so many steps before."""
    moved = [(at - step, value) for at, value in target if at > max(step, 0)]
    return ((0, scheduled(target, max(step, 0))), *moved)


def quota(share: int, target: Sequence[tuple[int, int]], shares: int) -> int:
    """Return how much share number `share` of the run holds; `shares` of them make a step.

    Those of one step differ by one at most, the larger first, and add up to its target.
    """
    step, place = divmod(share, shares)
    whole, rest = divmod(scheduled(target, step), shares)
    return whole + (place < rest)
