"""Which sample of its dataset a lane's n-th draw is.

Every epoch of a large leaf (a dataset of N samples) is divided into one share per lane, so that a
lane reads neighbouring samples. With l the number of this lane in a permutation of the lanes that
belongs to the leaf, the lane has made

    T(e) = (e * N + l) // lanes

draws before epoch e, so its share has T(e + 1) - T(e) samples. The shares before it have
S((e + 1) * N) - S(e * N), with S(x) the sum over i < l of (x + i) // lanes, in closed form
l * (x // lanes) + max(0, l - lanes + x % lanes). By Hermite's identity the shares of an epoch
are disjoint and complete, also where there are fewer samples than lanes.

A small leaf, of which a lane has few micro-batches in an epoch, is not divided. It has one share,
as if there were one lane, and the draws of the share are dealt to the lanes in grains (see
`grains`). So the consumer receives one epoch after the other, for any number of lanes.

A share is a range of the epoch's order, on a circle. There, sequences of neighbouring samples are
permuted, the last and shorter one among them, the circle is turned, and windows of a share are
permuted once more. In a small leaf each sequence has one sample: reading neighbours saves nothing.

Windows begin where sequences do, so that a lane is within few sequences at a time. Behind the
file's last sequence, which may be short, that is so from the next share on. The first windows of
the first share are shorter: they have 1, 1, 2, 4, ... sequences. So a lane that begins needs one
sequence for its first sample, and twice as many as it has used at any later time.

The sequences of a leaf may be runs, of samples that are cheap only together. Then a small leaf has
sequences too.

Epochs are permuted independently, so a micro-batch that ends one and begins the next could have a
sample twice. Therefore, with w the draws in a micro-batch, those of the first 2 w samples of a
share that are among the last w of the share before come last of them. A leaf of fewer than 3 w
samples has the same order in every epoch instead.

If q samples are cut from each chunk of a leaf, all of this is about chunks: draw n of a lane is
sample n mod q of its chunk n // q. So a lane reads the samples of a chunk one after another.

A leaf that mixes m epochs has the order of one epoch of m N samples, sample j of which is sample
j mod N. Each sample comes m times in m epochs, and each copy of a sequence has its own place.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import ArrayLike, NDArray

from energy_data.core.arrays import Int64s
from energy_data.core.keys import mix
from energy_data.core.references import rank_within
from energy_data.order.grains import Grains
from energy_data.order.permutation import permute

_LARGEST = 1 << 61

# What a leaf's key is used for must enter the keys made of it; 1 is for the lanes.
_SEQUENCES, _WINDOWS = 2, 3

# Micro-batches of a lane in an epoch from which on a leaf is large. With fewer, a lane that reads
# single samples reads no more of the files.
_FEW_BATCHES = 16

# By which the draws of a leaf in a micro-batch of a blend exceed their mean at most.
_MORE_DRAWS = 4


class Shares:
    """The shares of one lane in k leaves, of all epochs.

    The order of a leaf depends on its number of chunks, its key, its draws in a micro-batch, the
    lane, the number of lanes, its two lengths and its runs only: not on the other leaves, nor on
    its place among them.

    Args:
        num_chunks: Chunks of each leaf, int64 [k], 1 to 2**61; mostly each is one sample.
        keys: Keys of the leaves, uint64 [k], of `keys.key` or `keys.mix`.
        sequence_length: Samples that stay neighbours, in file order; an epoch permutes the
            sequences. 0 keeps the order of the file. One number, or one of each leaf, int64 [k].
        window: Draws of a share that are permuted among themselves; 0 or 1 keeps their order. One
            number, or one of each leaf, int64 [k].
        lane: The number of this lane, 0 to lanes - 1.
        lanes: The number of lanes.
        runs: Whether the sequences are runs. One for all leaves, or one of each, bool [k].
        epochs: How many epochs each leaf mixes, -1 for all that can be counted; None for the order
            of the file in every epoch. Default: 1 of each.
        grains: The chunks of each leaf in a micro-batch, as `grain_size` returns them. Default: all
            leaves are large, and epochs are independent.
        per_chunk: The number of samples in a chunk of each leaf. Default: 1 of each.

    Raises:
        ValueError: If a leaf has no samples, or too many, also in all epochs that it mixes.
    """

    def __init__(  # noqa: PLR0913 - facts of the leaves, of the shuffling and of the lane
        self,
        num_chunks: ArrayLike,
        keys: ArrayLike,
        *,
        sequence_length: ArrayLike,
        window: ArrayLike,
        runs: ArrayLike = False,
        lane: int,
        lanes: int,
        epochs: Sequence[int | None] = (),
        grains: Sequence[Fraction] = (),
        per_chunk: Sequence[int] = (),
    ) -> None:
        self._samples = np.array(num_chunks, np.int64)
        self._per_chunk = np.array(per_chunk, np.int64) if any(n > 1 for n in per_chunk) else None
        windows = np.asarray(window, np.int64)
        is_one = windows.ndim == 0 or bool((windows == windows[0]).all())
        self._window: Int64s | int = int(windows.flat[0]) if is_one else np.maximum(windows, 1)
        self._mixes_window = bool((windows > 1).any())
        self._times = _times(epochs, self._samples.tolist())
        self._sizes = self._samples * self._times
        self._mixes = bool((self._times != 1).any())
        in_file_order = np.array([each is None for each in epochs] or False)
        draws = np.array([max(ceil(size), 1) for size in grains] or 1)
        small = (self._sizes < _FEW_BATCHES * lanes * draws) & bool(grains)
        self.grain_sizes = [
            size if few else Fraction(0)
            for few, size in zip(small, grains or [Fraction(0)] * len(small), strict=True)
        ]
        self.grains = Grains(self.grain_sizes, keys, lane=lane, lanes=lanes)
        self._small = small if small.any() else None
        self._lanes = np.where(small, 1, lanes)  # among which the leaf is divided
        self._positions = np.where(small, 0, lanes - 1 - self.grains.positions)
        lengths = np.asarray(sequence_length, np.int64)
        lengths = np.where(small & ~np.asarray(runs, bool), np.minimum(lengths, 1), lengths)
        self._lengths = np.where(in_file_order, 0, lengths)
        self._shuffles = bool(self._lengths.any())
        width = np.where(small, draws * (draws > 1), draws + _MORE_DRAWS)
        width = width * ((self._lengths > 0) | (windows > 1)) * bool(grains)
        self._changes = self._sizes >= 3 * self._lanes * width
        self._apart_by = width * self._changes
        self._sequence_keys = mix(keys, _SEQUENCES)
        self._window_keys = mix(mix(keys, _WINDOWS), self._positions)

    def begin(self, leaf: int, epoch: int) -> int:
        """How many draws this lane makes from the leaf before the epoch begins; any size."""
        return self.own(leaf, epoch * int(self._samples[leaf]))

    def own(self, leaf: int, chunks: int) -> int:
        """How many draws of this lane are of the first `chunks` chunks of a leaf; any size."""
        per_chunk = 1 if self._per_chunk is None else int(self._per_chunk[leaf])
        return self.grains.count(leaf, chunks) * per_chunk

    def locate(self, leaf: ArrayLike, draw: ArrayLike) -> tuple[Int64s, Int64s]:
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
        if self._per_chunk is None:
            return self._located(leaves, draws)
        per_chunk = self._per_chunk[leaves]
        draws, part = np.divmod(draws, per_chunk)
        epoch, chunk = self._located(leaves, draws)
        return epoch, chunk * per_chunk + part

    def _located(self, leaves: Int64s, draws: Int64s) -> tuple[Int64s, Int64s]:
        """The epoch of each chunk that is drawn, and the number of the chunk."""
        self.grains.check(draws)
        if self._small is not None:
            draws = np.where(self._small[leaves], self.grains.numbers(leaves, draws), draws)
        samples, position = self._sizes[leaves], self._positions[leaves]
        lanes = self._divided(leaves)
        epoch = _quotient((draws + 1) * lanes - position - 1, samples)
        place = draws - _quotient(epoch * samples + position, lanes)
        found = self._placed(leaves, epoch, place)
        early = np.flatnonzero((place < 2 * self._apart_by[leaves]) & (epoch > 0))
        if len(early):
            found[early] = self._apart(leaves[early], epoch[early], place[early])
        if not self._mixes:
            return epoch, found
        copies, sample = np.divmod(found, self._samples[leaves])
        return epoch * self._times[leaves] + copies, sample

    def _divided(self, leaves: Int64s) -> Int64s | int:
        """Among how many lanes each leaf is divided; one number, which is faster, if all are so."""
        return self.grains.lanes if self._small is None else self._lanes[leaves]

    def _placed(self, leaves: Int64s, epoch: Int64s, place: Int64s) -> Int64s:
        """Samples of the file at places of the shares of these epochs, before `_apart`."""
        samples, position = self._sizes[leaves], self._positions[leaves]
        lanes = self._divided(leaves)
        first = epoch * samples
        begin = _quotient(first + position, lanes)
        turn = epoch * self._changes[leaves]
        offset = _start(first + samples, position, lanes) - _start(first, position, lanes)
        if self._mixes_window:
            size = _quotient(first + samples + position, lanes) - begin
            place = self._mixed(leaves, turn, place, size, offset)
        place = place + offset
        if self._shuffles:
            length = self._lengths[leaves]
            permuted = self._permuted(leaves, turn, place, np.maximum(length, 1))
            place = np.where(length > 0, permuted, place)
        return place

    def _apart(self, leaves: Int64s, epoch: Int64s, place: Int64s) -> Int64s:
        """Samples at the first places of shares, the repeated ones after the others."""
        each, pairs = _distinct(leaves, epoch)
        leaf, of = leaves[pairs], epoch[pairs]
        width = self._apart_by[leaf]
        samples, position, lanes = self._sizes[leaf], self._positions[leaf], self._divided(leaf)
        begin = _quotient(of * samples + position, lanes)
        last = begin - _quotient((of - 1) * samples + position, lanes)  # places of the share before
        # The last places of the share before, then the first ones of this share.
        row = np.repeat(np.arange(len(pairs)), 3 * width)
        at = rank_within(row) - width[row]
        found = self._placed(leaf[row], of[row] - (at < 0), at + last[row] * (at < 0))
        order = np.lexsort((at, found, row))
        again = (np.diff(found[order]) == 0) & (np.diff(row[order]) == 0)
        repeated = np.zeros(len(row), bool)
        repeated[order[1:][again]] = True
        early = np.flatnonzero(at >= 0)
        apart = found[early[np.lexsort((repeated[early], row[early]))]]  # a stable sort
        starts = np.cumsum(2 * width) - 2 * width
        chosen: Int64s = apart[starts[each] + place]
        return chosen

    def _mixed(
        self, leaf: Int64s, epoch: Int64s, place: Int64s, size: Int64s, offset: Int64s
    ) -> Int64s:
        """Places in the share, after permuting its windows; the first and last may be short."""
        # One number where all leaves have the same, which numpy divides faster by.
        length = self._window if isinstance(self._window, int) else self._window[leaf]
        sequence = np.maximum(self._lengths[leaf], 1)
        _, _, at = self._on_circle(leaf, epoch, offset, sequence)
        before = at - _quotient(at, sequence) * sequence  # places of it that the share before has
        number = _quotient(place + before, length)
        begin, end = number * length, (number + 1) * length
        early = np.flatnonzero((number == 0) & (epoch == 0))
        if len(early):
            at = (place + before)[early]
            begin[early], end[early] = _growing(at, sequence[early], end[early])
        first, end = np.maximum(begin - before, 0), np.minimum(end - before, size)
        keys = mix(mix(self._window_keys[leaf], epoch), first)
        mixed: Int64s = first + permute(place - first, end - first, keys)
        return mixed

    def _permuted(self, leaf: Int64s, epoch: Int64s, place: Int64s, length: Int64s) -> Int64s:
        """Samples of the file at these places of the epoch, whose sequences are permuted."""
        sequences = _quotient(self._sizes[leaf] + (length - 1), length)
        keys, short, place = self._on_circle(leaf, epoch, place, length)
        sequence = _quotient(place, length)
        others = np.maximum(sequences - 1, 1)
        other = np.minimum(sequence - (sequence > short), others - 1)
        chosen: Int64s = np.where(sequence == short, sequences - 1, permute(other, others, keys))
        found: Int64s = chosen * length + (place - sequence * length)
        return found

    def _on_circle(
        self, leaf: Int64s, epoch: Int64s, place: Int64s, length: Int64s
    ) -> tuple[NDArray[np.uint64], Int64s, Int64s]:
        """The keys of the circles, where the short sequence is, and the places on the circles.

        Places count as if all sequences had `length` samples.
        """
        samples = self._sizes[leaf]
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
        return keys, short, place + missing * (place >= (short + 1) * length - missing)


def _start(total: Int64s, position: Int64s, lanes: Int64s | int) -> Int64s:
    """How many of the first `total` samples of all epochs are in the lanes before this one."""
    each = _quotient(total, lanes)
    extra = np.maximum(position - lanes + (total - each * lanes), 0)
    before: Int64s = each * position + extra
    return before


def _growing(place: Int64s, sequence: Int64s, window: Int64s) -> tuple[Int64s, Int64s]:
    """Return where windows begin and end that have 1, 1, 2, 4, ... sequences, up to `window`."""
    # The exponent of a float is the binary logarithm, exact for places below 2**53.
    _, doubled = np.frexp((place // sequence).astype(np.float64))
    end = sequence << doubled
    return np.where(doubled > 0, end >> 1, 0), np.minimum(end, window)


def _distinct(leaves: Int64s, epochs: Int64s) -> tuple[Int64s, Int64s]:
    """Return the number of each pair among the distinct ones, and where each of those is first."""
    order = np.lexsort((epochs, leaves))
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(leaves[order]) != 0) | (np.diff(epochs[order]) != 0)
    each = np.empty(len(order), np.int64)
    each[order] = np.cumsum(new) - 1
    return each, order[new]


def _quotient(number: Int64s, by: Int64s | int) -> Int64s:
    """The quotient number // by for number >= 0, by > 0: unsigned, which numpy divides faster."""
    divisor = by.view(np.uint64) if isinstance(by, np.ndarray) else np.uint64(by)
    return (number.view(np.uint64) // divisor).view(np.int64)


def _remainder(number: NDArray[np.uint64], by: Int64s) -> Int64s:
    rest: Int64s = (number % by.view(np.uint64)).view(np.int64)
    return rest


def _times(epochs: Sequence[int | None], sizes: Sequence[int]) -> Int64s:
    """Return how many epochs of each leaf have one order. ValueError for too many samples."""
    times = list(map(epochs_mixed, epochs, sizes)) if epochs else [1] * len(sizes)
    for leaf, (size, mixed) in enumerate(zip(sizes, times, strict=True)):
        if not 1 <= size * mixed <= _LARGEST:
            raise ValueError(
                f"a leaf must have 1 to 2**61 samples, got {size * mixed} for leaf {leaf}"
            )
    return np.array(times, np.int64)


ALL_DRAWS = 1 << 48
"""Draws of a leaf that mixes all its epochs, after which it would begin again."""


def epochs_mixed(epochs: int | None, num_samples: int) -> int:
    """Return how many epochs have one order; for -1, as many as there will ever be."""
    return max(ALL_DRAWS // max(num_samples, 1), 1) if epochs == -1 else epochs or 1
