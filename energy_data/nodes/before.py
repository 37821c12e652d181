"""What other order trees of the same lane have done to the leaves of one."""

from __future__ import annotations

from collections.abc import Mapping
from operator import add

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

Integers = npt.NDArray[np.int64]


@frozen
class Before:
    """Per leaf, how often it was drawn before a tree goes on, and what comes back to it then."""

    drawn: tuple[int, ...]  # by all order trees of the lane
    # Place of a leaf -> samples (epoch, number) that were drawn and never given: they come first.
    returned: Mapping[int, tuple[tuple[int, int], ...]] = field(factory=dict)
    own: tuple[int, ...] = ()  # by this tree itself, its offsets among them; empty: none
    starts: tuple[int, ...] = field(init=False)  # what its draws are numbered from

    @starts.default
    def _without_returned(self) -> tuple[int, ...]:
        own = self.own or (0,) * len(self.drawn)
        return tuple(
            drawn - own[place] - len(self.returned.get(place, ()))
            for place, drawn in enumerate(self.drawn)
        )

    def offsets(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Return what draws of each leaf are numbered from, with a tree's own offsets."""
        return tuple(map(add, self.starts, own)) if own and self.starts else own or self.starts

    def put_in(self, epochs: Integers, indices: Integers, leaf: Integers, rank: Integers) -> None:
        """Put what comes back in place of the first draws of its leaves; int64 [n] all.

        leaf: of each draw. rank: how often the tree has drawn that leaf before it.
        """
        for place, samples in self.returned.items():
            first = self.own[place] if self.own else 0
            mine = (leaf == place) & (rank >= first) & (rank < first + len(samples))
            for at in np.flatnonzero(mine).tolist():
                epochs[at], indices[at] = samples[rank[at] - first]


NOTHING_BEFORE = Before(())
