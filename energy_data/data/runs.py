"""Runs of samples that are cheap only together: large ones, and short ones at the ends of files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from energy_data.core.arrays import Int64s

_PIECE = 1 << 22  # bytes of a piece, about


def piece_length(run: int, num_bytes: int) -> int | None:
    """Return how many samples of a run are decoded at a time; None: all of them.

    run: the samples of the run. num_bytes: its bytes, decoded.
    """
    pieces = -(-num_bytes // _PIECE)
    # Two pieces are mixed: a run that has no more is as well decoded at once.
    return -(-run // pieces) if pieces > 2 else None


class RunOrder:
    """An order of the samples of a source in which all whole runs come first.

    So the order of a lane, whose sequences all have the length of a run, reads whole runs. The
    rest of each file comes after them, in the order of the files.

    Args:
        begins: The first sample of each file, from that of the source on; negative if the source
            begins within the first file.
        counts: The samples of each file.
        length: The samples of a whole run. Those of a file begin at multiples of it.
        num_samples: The samples of the source.
    """

    def __init__(
        self, begins: Sequence[int], counts: Sequence[int], *, length: int, num_samples: int
    ) -> None:
        first = np.array(begins, np.int64)
        begin, end = np.maximum(first, 0), np.minimum(first + counts, num_samples)
        first, begin, end = (column[begin < end] for column in (first, begin, end))
        whole_begin = np.minimum(first + -(-(begin - first) // length) * length, end)
        whole_end = np.maximum(first + (end - first) // length * length, whole_begin)
        rest = np.stack([begin, whole_begin, whole_end, end], axis=1)
        starts = np.concatenate([whole_begin, rest[:, ::2].ravel()])
        sizes = np.concatenate([whole_end - whole_begin, np.diff(rest)[:, ::2].ravel()])
        self._starts, sizes = starts[sizes > 0], sizes[sizes > 0]
        self._ends = np.cumsum(sizes)
        self._shift = self._starts - (self._ends - sizes)
        self._by_start = np.argsort(self._starts)

    @property
    def is_trivial(self) -> bool:
        """Whether it is the order of the samples."""
        return not self._shift.any()

    def samples(self, places: Int64s) -> Int64s:
        """Return the samples at places of this order, int64 [n]."""
        found: Int64s = places + self._shift[np.searchsorted(self._ends, places, side="right")]
        return found

    def places(self, samples: Int64s) -> Int64s:
        """Return the places of samples in this order, int64 [n]."""
        at = np.searchsorted(self._starts, samples, side="right", sorter=self._by_start) - 1
        found: Int64s = samples - self._shift[self._by_start[at]]
        return found
