"""References in blocks: which samples of which leaves, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


class Reference(NamedTuple):
    """One sample to be read."""

    entry: int  # place of the leaf in the order tree
    epoch: int  # how often the leaf was drawn through before
    number: int  # of the sample in the leaf


class References(Sequence[Reference]):
    """A block of references, as three int64 arrays of equal length."""

    __slots__ = ("entries", "epochs", "indices")

    def __init__(self, entries: Integers, epochs: Integers, indices: Integers) -> None:
        self.entries, self.epochs, self.indices = entries, epochs, indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, at: int) -> Reference: ...
    @overload
    def __getitem__(self, at: slice) -> References: ...
    def __getitem__(self, at: int | slice) -> Reference | References:
        if isinstance(at, slice):
            return References(self.entries[at], self.epochs[at], self.indices[at])
        return Reference(int(self.entries[at]), int(self.epochs[at]), int(self.indices[at]))
