"""Which sample of its dataset a lane's n-th draw is.

Every epoch of a leaf (a dataset of N samples) is cut into one share per lane. With l the number of
this lane in a permutation of the lanes that belongs to the leaf, the lane has made

    T(e) = (e * N + l) // lanes

draws before epoch e, so its share has T(e + 1) - T(e) samples. The shares before it have
S((e + 1) * N) - S(e * N), with S(x) the sum over i < l of (x + i) // lanes, in closed form
l * (x // lanes) + max(0, l - lanes + x % lanes). By Hermite's identity the shares of an epoch
are disjoint and complete, also where there are fewer samples than lanes.

A share is a range of the epoch's order, on a circle. There, sequences of neighbouring samples are
permuted, the last and shorter one among them, the circle is turned, and windows of a share are
permuted once more.

A leaf that mixes m epochs has the order of one epoch of m N samples, sample j of which is sample
j mod N. Each sample comes m times in m epochs, and each copy of a sequence has its own place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from energy_data.core.keys import mix
from energy_data.order.permutation import permute

Numbers = NDArray[np.int64]

_LARGEST = 1 << 62

# What a leaf's key is used for must enter the keys made of it.
_LANE, _SEQUENCES, _WINDOWS = 1, 2, 3


class Shares:
    """The shares of one lane in k leaves, of all epochs.

    The order of a leaf depends on its number of samples, its key, the lane, the number of lanes and
    the two lengths only: not on the other leaves, nor on its place among them.

    Args:
        num_samples: Samples of each leaf, int64 [k], 1 to 2**61.
        keys: Keys of the leaves, uint64 [k], of `keys.key` or `keys.mix`.
        sequence_length: Samples that stay neighbours, in file order; an epoch permutes the
            sequences. 0 keeps the order of the file.
        window: Draws of a share that are permuted among themselves; 0 or 1 keeps their order.
        lane: The number of this lane, 0 to lanes - 1.
        lanes: The number of lanes.
        epochs: How many epochs each leaf mixes, -1 for all that can be counted; None for the order
            of the file in every epoch. Default: 1 of each.

    Raises:
        ValueError: If a leaf has no samples, or too many, also in all epochs that it mixes.
    """

    def __init__(
        self,
        num_samples: ArrayLike,
        keys: ArrayLike,
        *,
        sequence_length: int,
        window: int,
        lane: int,
        lanes: int,
        epochs: Sequence[int | None] = (),
    ) -> None:
        self._samples = np.array(num_samples, np.int64)
        self._lanes, self._sequence_length, self._window = lanes, sequence_length, window
        sizes = self._samples.tolist()
        self._mixes = any(each != 1 for each in epochs)
        times = list(map(epochs_mixed, epochs, sizes)) if self._mixes else [1] * len(sizes)
        for leaf, (size, mixed) in enumerate(zip(sizes, times, strict=True)):
            if not 1 <= size * mixed <= _LARGEST // 2:
                raise ValueError(
                    f"a leaf must have 1 to 2**61 samples, got {size * mixed} for leaf {leaf}"
                )
        self._times = np.array(times, np.int64)
        self._in_file_order = np.array([each is None for each in epochs], bool)
        self._positions = permute(np.int64(lane), lanes, mix(keys, _LANE))
        self._sequence_keys = mix(keys, _SEQUENCES)
        self._window_keys = mix(mix(keys, _WINDOWS), self._positions)

    def position(self, leaf: int) -> int:
        """The number of this lane among the lanes as this leaf permutes them, 0 to lanes - 1."""
        return int(self._positions[leaf])

    def part(self, leaf: int, draws: int) -> int:
        """How many of the leaf's first `draws` draws over all lanes are this lane's; any size."""
        return (draws + self.position(leaf)) // self._lanes

    def begin(self, leaf: int, epoch: int) -> int:
        """How many draws this lane makes from the leaf before the epoch begins; any size."""
        return (epoch * int(self._samples[leaf]) + self.position(leaf)) // self._lanes

    def locate(self, leaf: ArrayLike, draw: ArrayLike) -> tuple[Numbers, Numbers]:
        """The epoch of each draw and its sample, 0 to N - 1: two int64 [m].

        Of a leaf that mixes epochs, no sample has the same epoch twice.

        Args:
            leaf: The leaf of each draw, int32 or int64 [m], in any mixture.
            draw: The number of each draw among the lane's draws from that leaf, int64 [m].

        In blocks of 4,096: 190 ns per draw with sequences and windows, 90 with one of them, 20 with
        neither; 20 to 250 us per call. Twice that while malloc gives memory back after each call,
        which glibc stops doing once the process has freed an array of some megabytes.

        Raises:
            OverflowError: If a draw times the lanes is 2**62 or more.
        """
        leaves, draws = np.asarray(leaf, np.intp), np.asarray(draw, np.int64)
        self._check(draws)
        samples, position, mixes = self._samples[leaves], self._positions[leaves], self._mixes
        if mixes:
            samples *= self._times[leaves]
        epoch = _quotient((draws + 1) * self._lanes - position - 1, samples)
        first = epoch * samples
        begin = _quotient(first + position, self._lanes)
        place = draws - begin
        if self._window > 1:
            size = _quotient(first + samples + position, self._lanes) - begin
            place = self._mixed(leaves, epoch, place, size)
        place += self._start(first + samples, position) - self._start(first, position)
        if self._sequence_length:
            permuted = self._permuted(leaves, epoch, place, samples)
            place = np.where(self._in_file_order[leaves], place, permuted) if mixes else permuted
        if not mixes:
            return epoch, place
        copies, sample = np.divmod(place, self._samples[leaves])
        return epoch * self._times[leaves] + copies, sample

    def _check(self, draws: Numbers) -> None:
        latest = int(draws.max(initial=0))
        if (latest + 1) * self._lanes >= _LARGEST:
            raise OverflowError(
                f"draw {latest} of a leaf in {self._lanes} lanes is out of reach: "
                f"draws times lanes must stay below 2**62"
            )

    def _start(self, total: Numbers, position: Numbers) -> Numbers:
        """How many of the first `total` samples of all epochs are in the lanes before this one."""
        each = _quotient(total, self._lanes)
        extra = position - self._lanes + (total - each * self._lanes)
        return each * position + np.maximum(extra, 0)

    def _mixed(self, leaf: Numbers, epoch: Numbers, place: Numbers, size: Numbers) -> Numbers:
        """Places in the share, after permuting its windows; the last window may be short."""
        window = _quotient(place, self._window)
        first = window * self._window
        keys = mix(mix(self._window_keys[leaf], epoch), window)
        return first + permute(place - first, np.minimum(size - first, self._window), keys)

    def _permuted(self, leaf: Numbers, epoch: Numbers, place: Numbers, samples: Numbers) -> Numbers:
        """Samples of the file at these places of the epoch, whose sequences are permuted."""
        length = self._sequence_length
        sequences = _quotient(samples + (length - 1), length)
        missing = sequences * length - samples
        keys = mix(self._sequence_keys[leaf], epoch)
        # Each epoch is turned by a number of its own: without that, a lane of a leaf that has few
        # samples per lane would be at the same places of a sequence in every epoch.
        place = place + _remainder(mix(keys, 1), samples)
        place -= samples * (place >= samples)
        # The file's last sequence, which may be short, goes to any place, and the others are
        # permuted around it: so where it is takes no inverse permutation.
        short = _remainder(mix(keys, 0), sequences)
        # Behind it, count as if it were as long as the others.
        place = place + missing * (place >= (short + 1) * length - missing)
        sequence = _quotient(place, length)
        others = np.maximum(sequences - 1, 1)
        other = np.minimum(sequence - (sequence > short), others - 1)
        chosen: Numbers = np.where(sequence == short, sequences - 1, permute(other, others, keys))
        return chosen * length + (place - sequence * length)


def _quotient(number: Numbers, by: Numbers | int) -> Numbers:
    """The quotient number // by for number >= 0, by > 0: unsigned, which numpy divides faster."""
    divisor = by.view(np.uint64) if isinstance(by, np.ndarray) else np.uint64(by)
    return (number.view(np.uint64) // divisor).view(np.int64)


def _remainder(number: NDArray[np.uint64], by: Numbers) -> Numbers:
    rest: Numbers = (number % by.view(np.uint64)).view(np.int64)
    return rest


ALL_DRAWS = 1 << 48
"""Draws of a leaf that mixes all its epochs, after which it would begin again."""


def epochs_mixed(epochs: int | None, num_samples: int) -> int:
    """Return how many epochs have one order; for -1, as many as there will ever be."""
    return max(ALL_DRAWS // max(num_samples, 1), 1) if epochs == -1 else epochs or 1
