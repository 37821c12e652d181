"""Two-way splits: how one lane deals its draws to many children, exactly and with random access.

Children are merged in pairs, the lightest first, as Huffman's code does it. At a split of total
weight W whose left side weighs w, a lane has sent `(k * w + phase) // W` of its first k draws left.
So after any number of draws every child has had its share but for less than one draw per level,
a few divisions tell how often a child was drawn and when, and nothing has to be remembered.

The two sides of split s are the *slots* 2 s (left) and 2 s + 1 (right); slot 2 S, `root`, is all of
it. Weights and counts are arrays by slot, so that one index finds those of a side. The *remainder*
of a split after k draws is `(k * w + phase) % W`: all that its later draws depend on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from heapq import heapify, heappop, heapreplace
from math import gcd, isfinite, lcm

import numpy as np
from numpy.typing import NDArray

from energy_data.core.arrays import Int64s
from energy_data.core.keys import mix
from energy_data.order.permutation import permute

# Up to this product of a total weight and a number of draws, doubles are exact in `Splits.deal`.
LARGEST_PRODUCT = 1 << 49
LARGEST_TOTAL = 1 << 40  # of the weights of one choice
_SCALE = 1 << 32
_LARGEST_DRAW = 1 << 50
_LARGEST_DRAWS = 1 << 62
# Draws that are dealt at once: enough to spread the cost of a call, few enough for the caches.
_BLOCK = 8192


class Splits:
    """The shape of the splits over k children; the weights to split by may differ from its own.

    Args:
        weights: Positive weights that give the shape, k >= 1 of them; their sum below 2**62.
        key: The key of a split comes from this one and the weights of its two sides, so that the
            place of a child among the children does not matter to it.
    """

    def __init__(self, weights: Sequence[int], key: int) -> None:
        self.num_children, self.num_splits = len(weights), len(weights) - 1
        self.root = 2 * self.num_splits
        self._slot = np.zeros(self.num_splits, np.int64)
        self._levels: list[slice] = []
        self._leaf_slot = np.zeros(self.num_children, np.int64)
        self._number(_merged(weights))
        self._order, self._climbs = self._climbed()
        self._keys = self._split_keys(self.weigh(np.array(weights, np.int64)), key)

    def weigh(self, weights: Int64s) -> Int64s:
        """The weights of the slots, [..., 2 S + 1], of weights of the children, [..., k]."""
        slots = np.empty((*weights.shape[:-1], self.root + 1), np.int64)
        slots[..., self._leaf_slot] = weights
        for level in reversed(self._levels):
            left = slots[..., 2 * level.start : 2 * level.stop : 2]
            right = slots[..., 2 * level.start + 1 : 2 * level.stop : 2]
            slots[..., self._slot[level]] = left + right
        return slots

    def phases(self, slots: Int64s, lane: int, lanes: int) -> Int64s:
        """The remainders of a lane before its first draw, [..., S], for these weights of slots.

        Each split spreads the lanes evenly, in a permutation of its own.
        """
        odd = 2 * permute(np.int64(lane), lanes, self._keys) + 1
        return exact_quotient(odd, slots[..., self._slot], 2 * lanes, 0)

    def moved(self, slots: Int64s, remainders: Int64s, ahead: Int64s, point: int) -> Int64s:
        """The remainders once the splits begin with slots that are ahead of their share, [..., S].

        A left side that is ahead of its part of what both sides are gets its next draw later, or
        else earlier, by no more than one draw.

        Args:
            slots: Weights of the slots, [2 S + 1].
            remainders: Remainders of slots that are even, [S].
            ahead: By how many draws slots are ahead, times 2**point, [2 S + 1].
            point: Bits behind the point of `ahead`.
        """
        total, left = slots[self._slot], slots[:-1:2]
        moved = remainders + ((left * ahead[self._slot] - total * ahead[:-1:2]) >> point)
        return np.clip(moved, 0, np.maximum(total - 1, 0))

    def advance(self, slots: Int64s, remainders: Int64s, count: int) -> tuple[Int64s, Int64s]:
        """Return the draws of each slot among the next `count`, and the remainders after them.

        int64 [2 S + 1] and [S]. 100 us for 1,000 children.
        """
        drawn = np.empty(self.root + 1, np.int64)
        drawn[self.root] = count
        total, left = slots[self._slot], slots[:-1:2]
        # An empty split has no draws to send, so any divisor will do.
        total = np.maximum(total, 1)
        after = np.empty_like(remainders)
        for level in self._levels:
            here, rest = drawn[self._slot[level]], remainders[level]
            sent = exact_quotient(here, left[level], total[level], rest)
            # Wraps around where the products are large, and back in the difference.
            after[level] = here * left[level] + rest - sent * total[level]
            drawn[2 * level.start : 2 * level.stop : 2] = sent
            drawn[2 * level.start + 1 : 2 * level.stop : 2] = here - sent
        return drawn, after

    def deal(self, slots: Int64s, remainders: Int64s, count: int) -> Int64s:
        """Return the children of the next draws, int64 [count].

        60 ns per draw in blocks of 4,096 with 1,000 children, 25 with 10; 40 to 200 us per call.
        """
        children = np.empty(count, np.int64)
        block = max(1, min(_BLOCK, LARGEST_PRODUCT // int(slots[self.root])))
        for begin in range(0, count, block):
            part = children[begin : begin + block]
            drawn, after = self.advance(slots, remainders, len(part))
            child, place = self._walk(slots, remainders, drawn)
            part[place] = child
            remainders = after
        return children

    def _walk(self, slots: Int64s, remainders: Int64s, drawn: Int64s) -> tuple[Int64s, Int64s]:
        """Return the child and the place of each of the next draws, ordered by child, int64.

        `drawn` [2 S + 1] has how many there are. From the children up: the m-th draw of the left
        side is the least i with (i + 1) w + r >= (m + 1) W, so i = floor(((m + 1) W - r - 1/2) /
        w); the m-th of the right side is floor((m W + r + 1/2) / (W - w)). Numerators are odd
        multiples of 1/2, so quotients keep a distance of 1 / 2 w from integers and doubles find the
        same floor, as long as W times the number of draws is at most `LARGEST_PRODUCT`.
        """
        total = slots[self._slot].astype(np.float64)
        own = np.maximum(slots, 1).astype(np.float64)
        slope, offset = np.empty(self.root), np.empty(self.root)
        slope[::2], slope[1::2] = total / own[:-1:2], total / own[1::2]
        offset[::2] = (total - remainders - 0.5) / own[:-1:2]
        offset[1::2] = (remainders + 0.5) / own[1::2]
        counts = drawn[self._leaf_slot[self._order]]
        ends = counts.cumsum()
        row = np.repeat(np.arange(len(counts)), counts)
        place = (np.arange(len(row)) - (ends - counts)[row]).astype(np.float64)
        for climb in self._climbs:
            end = ends[len(climb) - 1]
            part, here = place[:end], row[:end]
            part *= slope[climb][here]
            part += offset[climb][here]
            np.floor(part, out=part)
        return self._order[row], place.astype(np.int64)

    def when(self, slots: Int64s, remainders: Int64s, numbers: Int64s) -> Int64s:
        """The place of each child's draw number `numbers[child]` among all draws; int64 [k].

        Exact below 2**62; wrong for children without weight. 200 us for 1,000 children.
        """
        place = numbers[self._order]
        for climb in self._climbs:
            split, part = climb >> 1, place[: len(climb)]
            total, own = slots[self._slot[split]], np.maximum(slots[climb], 1)
            rest = np.where(climb & 1, remainders[split], total - remainders[split] - 1)
            place[: len(climb)] = exact_quotient(part, total, own, rest)
        result = np.empty_like(place)
        result[self._order] = place
        return result

    def without(self, slots: Int64s, remainders: Int64s, child: int) -> tuple[Int64s, Int64s]:
        """Weights of slots and remainders once a child has left; the others go on from there.

        The remainder of a split is how near its next draw to the left is, in units of its weight:
        it keeps its proportion, so that no child gains or loses by another one leaving.
        """
        slots, remainders = slots.copy(), remainders.copy()
        slot = int(self._leaf_slot[child])
        weight = int(slots[slot])
        slots[slot] = 0
        while slot != self.root:
            split = slot >> 1
            slot = int(self._slot[split])
            total = int(slots[slot])
            remainders[split] = int(remainders[split]) * (total - weight) // total
            slots[slot] = total - weight
        return slots, remainders

    def descend(self, slots: Int64s, remainders: Int64s, row: Int64s, draw: Int64s) -> Int64s:
        """The child of draw number `draw` under the weights in row `row`; int64 [m].

        Args:
            slots: Weights of slots, one row per set of weights, [rows, 2 S + 1].
            remainders: Remainders before draw 0 of the row, [rows, S].
            row: The row of each draw, int64 [m].
            draw: The draws, int64 [m].
        """
        below = np.empty(self.root + 1, np.int64)
        below[self._slot] = np.arange(self.num_splits)
        below[self._leaf_slot] = ~np.arange(self.num_children)
        draw = draw.copy()
        node = np.full(len(draw), below[self.root])
        active = np.flatnonzero(node >= 0)
        while active.size:
            split, at, k = node[active], row[active], draw[active]
            left, total = slots[at, 2 * split], slots[at, self._slot[split]]
            sent = exact_quotient(k, left, total, remainders[at, split])
            rest = k * left + remainders[at, split] - sent * total
            goes_left = rest >= total - left
            draw[active] = np.where(goes_left, sent, k - sent)
            node[active] = below[2 * split + ~goes_left]
            active = active[node[active] >= 0]
        return ~node

    def by_child(self, drawn: Int64s) -> Int64s:
        """What is by slot, [..., 2 S + 1], by child: [..., k]."""
        return drawn[..., self._leaf_slot]

    def _number(self, pairs: list[tuple[int, int]]) -> None:
        """Number the splits from the root down, level by level."""
        level, begin = [(self.num_children + len(pairs) - 1, self.root)], 0
        while level:
            below: list[tuple[int, int]] = []
            number = begin
            for node, slot in level:
                if node < self.num_children:
                    self._leaf_slot[node] = slot
                    continue
                self._slot[number] = slot
                left, right = pairs[node - self.num_children]
                below += [(left, 2 * number), (right, 2 * number + 1)]
                number += 1
            if number > begin:
                self._levels.append(slice(begin, number))
            level, begin = below, number

    def _climbed(self) -> tuple[Int64s, list[Int64s]]:
        """The children, deepest first, and the slots that they pass on the way to the root.

        Climb t has the slots after t steps of those children that are not at the root by then: a
        prefix, as the deepest come first.
        """
        order = np.argsort(-self._leaf_slot, kind="stable")
        slots, climbs = self._leaf_slot[order], []
        depth = np.zeros(self.num_children, np.int64)
        while (away := slots != self.root).any():
            depth += away
            slots = np.where(away, np.append(self._slot, self.root)[slots >> 1], slots)
        order = order[np.argsort(-depth, kind="stable")]
        slots = self._leaf_slot[order]
        while (slots := slots[slots != self.root]).size:
            climbs.append(slots)
            slots = self._slot[slots >> 1]
        return order, climbs

    def _split_keys(self, slots: Int64s, key: int) -> NDArray[np.uint64]:
        total, left = slots[self._slot], slots[:-1:2]
        seen: Counter[tuple[int, int]] = Counter()
        same = np.zeros(self.num_splits, np.int64)
        for number, sides in enumerate(zip(total.tolist(), left.tolist(), strict=True)):
            same[number] = seen[sides]
            seen[sides] += 1
        return mix(mix(mix(np.uint64(key), total), left), same)


def _merged(weights: Sequence[int]) -> list[tuple[int, int]]:
    """The two nodes of each merge, the lightest first; children are nodes 0 to k - 1."""
    heap = [(weight, node) for node, weight in enumerate(weights)]
    heapify(heap)
    pairs = []
    for node in range(len(weights), 2 * len(weights) - 1):
        lightest, left = heappop(heap)
        second, right = heap[0]
        heapreplace(heap, (lightest + second, node))
        pairs.append((left, right))
    return pairs


def exact_quotient(number: Int64s, by: Int64s, total: Int64s | int, rest: Int64s | int) -> Int64s:
    """The quotient (number * by + rest) // total, where the product may exceed 64 bits.

    Exact for total and rest up to 2**40 and results below 2**62: the quotient in doubles is off by
    2**11 at most, so what it leaves over is below 2**52, and right in arithmetic modulo 2**64.
    """
    about = (number * (by / total)).astype(np.int64)
    over: Int64s = number * by + rest - about * total
    return about + over // total


def integer_weights(weights: Sequence[float | Fraction]) -> list[int]:
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
    exact = [exact_fraction(weight) for weight in weights]
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


def exact_fraction(number: float | str | Fraction) -> Fraction:
    """Return what a float prints as, or a fraction with a small denominator if it equals that."""
    if isinstance(number, int | str | Fraction):
        return Fraction(number)
    simple = Fraction(float(number)).limit_denominator(1_000_000)
    return simple if float(simple) == number else Fraction(str(number))
