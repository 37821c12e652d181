"""Reads and decodes all samples of datasets, once, in processes, and reports the bad ones.

for found in check_samples([open_source("/data/coco")]):
    print(found.faults)
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from energy_data.core.processes import map_in_processes, num_processes
from energy_data.core.sample import place_of, values_of
from energy_data.data.decode.av import AVDecoder
from energy_data.data.source import Source
from energy_data.errors import DataError, ExcludedError, SampleError, StructureError

_BLOCK = 1024  # samples that a process checks before it reports
_AT_ONCE = 16  # samples in memory


class SampleRange(NamedTuple):
    """Samples [first, end) of a source."""

    source: Source
    first: int
    end: int


class Checked(NamedTuple):
    """What was found in a range."""

    samples: int
    excluded: int  # that a sample_loader or a joiner leaves out
    bad: int
    faults: list[DataError]  # each once: a damaged shard makes all its samples bad


def check_samples(
    sources: Sequence[Source], *, workers: int | None = None
) -> Generator[Checked, None, None]:
    """Yield what is found in each range of samples, in order.

    workers: number of processes; by default one per 1,024 samples, at most one per CPU. Raises
    MissingExtraError if a decoder is not installed.
    """
    ranges = [one for source in sources for one in _ranges(source)]
    workers = num_processes(workers, len(ranges))
    return map_in_processes(_check, ranges, workers=workers, preload=(__name__, "torch"))


def _ranges(source: Source) -> Iterator[SampleRange]:
    run = source.run_length or 1
    step = run * max(_BLOCK // run, 1)
    for first in range(0, len(source), step):
        yield SampleRange(source, first, min(first + step, len(source)))


def _check(of: SampleRange) -> Checked:
    """Read and decode the samples of a range; runs in worker processes."""
    excluded = bad = 0
    faults: dict[str, DataError] = {}
    for first in range(of.first, of.end, _AT_ONCE):
        for found in _read(of.source, range(first, min(first + _AT_ONCE, of.end))):
            if isinstance(found, ExcludedError):
                excluded += 1
            elif (
                fault := found if isinstance(found, DataError) else _bad_media(found)
            ) is not None:
                bad += 1
                faults.setdefault(str(fault), fault)
    return Checked(of.end - of.first, excluded, bad, list(faults.values()))


def _read(source: Source, indices: Sequence[int]) -> list[Any]:
    """Return samples and errors; a damaged shard is an error of each of its samples."""
    try:
        return list(source.read(np.array(indices, np.int64)))
    except StructureError as error:
        if len(indices) == 1:
            return [error]
        return [found for index in indices for found in _read(source, [index])]


def _bad_media(sample: Any) -> SampleError | None:
    """Return the error of audio or video that cannot be opened, as it is decoded on request."""
    for name, value in values_of(sample).items():
        if isinstance(value, AVDecoder):
            try:
                value.get_metadata()
            except ValueError as error:
                return SampleError(f"{name!r} cannot be decoded: {error}.", **place_of(sample))
    return None
