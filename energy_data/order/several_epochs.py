"""Shares of leaves some of which mix several epochs with each other, or none.

Mixing m epochs of a leaf of N samples is an order of one epoch of m N samples, sample j of which is
sample j mod N: each comes m times in m epochs, and each copy of a sequence has a place of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from energy_data.order.shares import Numbers, Shares

ALL_DRAWS = 1 << 48
"""Draws of a leaf that mixes all its epochs, after which it would begin again."""


def epochs_mixed(epochs: int | None, num_samples: int) -> int:
    """Return how many epochs are one order: as said, or as many as there will ever be for -1."""
    return max(ALL_DRAWS // num_samples, 1) if epochs == -1 else epochs or 1


def shares_of(
    num_samples: ArrayLike,
    keys: ArrayLike,
    epochs: Sequence[int | None],
    *,
    sequence_length: int,
    window: int,
    lane: ArrayLike,
    lanes: int,
) -> Shares:
    """Return the shares of leaves that mix such numbers of epochs; mostly 1 of each."""
    lengths = {"sequence_length": sequence_length, "window": window}
    if all(each == 1 for each in epochs):
        return Shares(num_samples, keys, lane=lane, lanes=lanes, **lengths)
    return SeveralEpochs(num_samples, keys, epochs, lane=lane, lanes=lanes, **lengths)


class SeveralEpochs(Shares):
    """Shares of one lane, of leaves each of which mixes its own number of epochs.

    epochs: per leaf the number, -1 for all, None for the order of the file in every epoch (windows
    are permuted all the same). What is counted in epochs (`begin`) stays the same. Other arguments,
    and what is raised: as for `Shares`; ValueError if epochs times samples is above 2**61.
    """

    def __init__(
        self,
        num_samples: ArrayLike,
        keys: ArrayLike,
        epochs: Sequence[int | None],
        *,
        sequence_length: int,
        window: int,
        lane: ArrayLike,
        lanes: int,
    ) -> None:
        super().__init__(
            num_samples,
            keys,
            sequence_length=sequence_length,
            window=window,
            lane=lane,
            lanes=lanes,
        )
        sizes = np.array(num_samples, np.int64).tolist()
        times = [epochs_mixed(*each) for each in zip(epochs, sizes, strict=True)]
        self._times = np.array(times, np.int64)
        self._in_file_order = np.array([each is None for each in epochs])
        self._ordered = Shares(
            num_samples, keys, sequence_length=0, window=window, lane=lane, lanes=lanes
        )
        self._mixed_shares = Shares(
            [times * size for times, size in zip(times, sizes, strict=True)],
            keys,
            sequence_length=sequence_length,
            window=window,
            lane=lane,
            lanes=lanes,
        )

    def part_of(self, leaves: slice) -> SeveralEpochs:
        """The shares of these leaves alone, numbered from 0."""
        part = super().part_of(leaves)
        assert isinstance(part, SeveralEpochs)
        part._times, part._in_file_order = self._times[leaves], self._in_file_order[leaves]
        part._ordered = self._ordered.part_of(leaves)
        part._mixed_shares = self._mixed_shares.part_of(leaves)
        return part

    def locate(self, leaf: ArrayLike, draw: ArrayLike) -> tuple[Numbers, Numbers]:
        """The epoch of each draw and its sample, as `Shares.locate`.

        Of a leaf that mixes m epochs, the epoch is one of the m that the draw belongs to: no sample
        has the same one twice.
        """
        leaves, draws = np.asarray(leaf, np.intp), np.asarray(draw, np.int64)
        epoch, place = np.empty_like(draws), np.empty_like(draws)
        ordered = self._in_file_order[leaves]
        for chosen, shares in ((ordered, self._ordered), (~ordered, self._mixed_shares)):
            epoch[chosen], place[chosen] = shares.locate(leaves[chosen], draws[chosen])
        copy, sample = np.divmod(place, self._samples[leaves])
        return epoch * self._times[leaves] + copy, sample
