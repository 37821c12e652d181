"""Sources whose samples are ranges of bytes of their shards, neighbours read together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import ClassVar

import numpy as np

from energy_data.core.arrays import Int64s
from energy_data.core.sample import Sample, make_source
from energy_data.data.files.local import LocalFile
from energy_data.data.files.offsets import IndexedFile, bounds_of
from energy_data.data.part import ShardedSource, names_dataset
from energy_data.errors import SampleError, StructureError

_MOST = 1 << 26  # bytes read at once


class RecordSource(ShardedSource):
    """Samples of shards whose kind has an `open_block`; a subclass decodes them.

    advice: what to do about an index that is wrong.
    """

    advice: ClassVar[str]

    @abstractmethod
    def sample(self, number: int, row: int, data: memoryview, offset: int) -> Sample | SampleError:
        """Return a sample.

        number: of its shard. row: its own in that shard. data: its bytes; they are to be copied.
        offset: where they are.
        """

    def fields(self, number: int, row: int) -> Sample:
        """Return the fields that all samples have."""
        source = make_source((self.path, self.part.shards[number], row))
        return {
            "__key__": str(row),
            "__subflavors__": self.options.subflavors,
            "__sources__": (source,),
        }

    def bad_sample(self, problem: str, number: int, row: int, offset: int | None) -> SampleError:
        """Return the error in place of a sample. The other arguments are those of `sample`."""
        return SampleError(
            problem,
            dataset=self.path,
            shard=self.part.shards[number],
            key=str(row),
            index=row,
            offset=offset,
        )

    def read(self, indices: Int64s) -> list[Sample | SampleError]:
        """Return the samples of `indices`, in that order; a bad sample is a SampleError."""
        samples: list[Sample | SampleError] = [{}] * len(indices)
        with names_dataset(self.path):
            for number, places, rows in self._by_shard(np.asarray(indices, np.int64)):
                found = self._read_shard(number, rows)
                for place, sample in zip(places.tolist(), found, strict=True):
                    samples[place] = sample
        return samples

    def _read_shard(self, number: int, rows: Int64s) -> Iterator[Sample | SampleError]:
        """Yield samples of a shard; `rows` is sorted."""
        file, begins, ends = locate(partial(self._open, number), rows, self.advice)
        for first, end in _runs(begins, ends, file.gap):
            shift = begins[first]
            data = memoryview(file.read(shift, ends[end - 1] - shift))
            for n in range(first, end):
                record = data[begins[n] - shift : ends[n] - shift]
                yield self.sample(number, int(rows[n]), record, begins[n])


def locate(
    open_block: Callable[[int], IndexedFile], rows: Int64s, advice: str, *, bits: int = 0
) -> tuple[LocalFile, list[int], list[int]]:
    """Return a file, and where some samples of it begin and end.

    open_block, rows: as in `bounds_of`. bits: the lowest ones of each offset, which are a place in
    what begins at a byte. Raises StructureError, with advice, for an index that is wrong.
    """
    file, begins, ends = bounds_of(open_block, rows)
    wrong = np.flatnonzero((begins >= ends) | (ends > file.size << bits))
    if len(wrong):
        at, stop = int(begins[wrong[0]]), int(ends[wrong[0]])
        raise StructureError(
            f"its index has a sample from byte {at} to {stop}, which is invalid. {advice}",
            shard=file.path,
            offset=at,
        )
    return file, begins.tolist(), ends.tolist()


def _runs(begins: list[int], ends: list[int], gap: int) -> list[tuple[int, int]]:
    """Return the samples [first, end) that are read together: neighbours in the file."""
    bounds, start = [0], 0
    for n in range(1, len(begins)):
        if begins[n] > ends[n - 1] + gap or ends[n] - begins[start] > _MOST:
            bounds.append(n)
            start = n
    return list(pairwise([*bounds, len(begins)]))
