"""How samples are cut from chunks, so that stages may read a leaf by samples of several lengths.

A chunk is what the order deals to a lane: `chunk` units, such as tokens. Each sample is the next
`stride` units of it. The place of a lane in a leaf is counted in units, so it means the same
whatever the stride. Of most leaves, a chunk is one sample, and the unit is a sample.

Where longer samples follow shorter ones, a lane may be inside a sample. What is left of it is read
as a *part* of a sample. Parts have indices from PARTS on.

Pending samples are kept as *spans* [begin, end) of units, as one number each, which also mean the
same whatever the stride.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

PARTS = 1 << 62
"""The index of the first part."""

Sample = tuple[int, int]
"""The epoch of a sample, and its span as a number or its index."""


@frozen
class Cut:
    """The samples of a leaf: `stride` units each, of chunks of `chunk` units."""

    chunk: int = 1
    stride: int = 1

    @property
    def samples(self) -> int:
        """The number of samples in a chunk."""
        return self.chunk // self.stride

    def bounds(self, index: int) -> tuple[int, int]:
        """Return the units [begin, end) of a sample, or of a part of one."""
        if index < PARTS:
            return index * self.stride, (index + 1) * self.stride
        begin, length = divmod(index - PARTS, self.chunk)
        return begin, begin + length + 1

    def index(self, begin: int, end: int) -> int:
        """Return the index of units [begin, end), which lie in one sample."""
        if end - begin == self.stride:
            return begin // self.stride
        return PARTS + self._span(begin, end)

    def span(self, index: int) -> int:
        """Return the span of a sample, or of a part of one."""
        return index if self.chunk == 1 else self._span(*self.bounds(index))

    def _span(self, begin: int, end: int) -> int:
        return begin * self.chunk + end - begin - 1

    def has(self, index: int, num_samples: int) -> bool:
        """Return whether there is a sample, or a part of one, of this index."""
        if index < PARTS:
            return 0 <= index < num_samples
        begin, end = self.bounds(index)
        is_part = end - begin < self.stride and begin // self.stride == (end - 1) // self.stride
        return is_part and end <= num_samples * self.stride

    def indices(self, spans: Iterable[Sample]) -> list[Sample]:
        """Return the samples, and the parts of samples, that lie in spans: epoch and index of each.

        Neighbours that lie in one sample become one part.
        """
        if self.chunk == 1:
            return list(spans)
        found: list[tuple[int, int, int]] = []
        for epoch, span in spans:
            begin, length = divmod(span, self.chunk)
            end = begin + length + 1
            if found and found[-1][0] == epoch and found[-1][2] == begin and begin % self.stride:
                begin = found.pop()[1]
            while begin < end:
                stop = min(begin // self.stride * self.stride + self.stride, end)
                found.append((epoch, begin, stop))
                begin = stop
        return [(epoch, self.index(begin, end)) for epoch, begin, end in found]


WHOLE = Cut()
"""Each sample is a chunk, and the unit is a sample."""
