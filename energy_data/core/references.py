"""Blocks of references, as arrays: which samples of which leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from energy_data.core.arrays import Int64s

Reference = tuple[int, int, int]
"""One sample to read: entry (position of its leaf in the order tree), epoch, index in the leaf."""


class References(Sequence[Reference]):
    """A block of references, as three int64 arrays of equal length."""

    __slots__ = ("entries", "epochs", "indices")

    def __init__(self, entries: Int64s, epochs: Int64s, indices: Int64s) -> None:
        self.entries, self.epochs, self.indices = entries, epochs, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Reference]:
        columns = self.entries.tolist(), self.epochs.tolist(), self.indices.tolist()
        return zip(*columns, strict=True)

    @overload
    def __getitem__(self, at: int) -> Reference: ...
    @overload
    def __getitem__(self, at: slice) -> References: ...
    def __getitem__(self, at: int | slice) -> Reference | References:
        if isinstance(at, slice):
            return References(self.entries[at], self.epochs[at], self.indices[at])
        return int(self.entries[at]), int(self.epochs[at]), int(self.indices[at])


def rank_within(groups: Int64s) -> Int64s:
    """Return for each element how many equal elements precede it, int64 [n]."""
    if not len(groups) or (groups[0] == groups[-1] and not np.any(groups != groups[0])):
        return np.arange(len(groups), dtype=np.int64)
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    firsts = np.repeat(starts, np.diff(np.append(starts, len(groups))))
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - firsts
    return ranks
