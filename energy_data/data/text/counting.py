"""Counts the tokens of all samples of a dataset, once, in processes.

    count_tokens("/data/pages", Tokenize("tokenizer.json", field="json.text"))

The counts of a shard are written next to it. What is stopped continues after the last block of
samples; shards that are counted are left as they are. Counts of another tokenizer or field are only
replaced by force.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from energy_data.core.processes import map_in_processes, num_processes
from energy_data.core.recipe import keys_of
from energy_data.core.sample import Sample
from energy_data.data.decode.parts import Decoding
from energy_data.data.files.local import version_of
from energy_data.data.part import ShardedSource, find_plain, prepared_at
from energy_data.data.registry import SourceFormat, format_of, located, open_format
from energy_data.data.shards import Progress
from energy_data.data.source import OpenOptions, Source
from energy_data.data.text.counts import (
    DTYPE,
    HEADER,
    MOST,
    ShardCounts,
    counts_path,
    read_counts,
)
from energy_data.data.text.tokenize import Tokenizing
from energy_data.errors import ReadOnlyError, SampleError, SpecError, StructureError
from energy_data.remote.cached_ranges import facts_of
from energy_data.remote.mirror_paths import is_mirrored
from energy_data.remote.mirrors import publish

_BLOCK = 4096  # samples that a process counts at once
_AT_ONCE = 256  # samples in memory
_TOLERATED = 100  # samples without tokens in a row after which it stops, as task encoders do
_BYTES_PER_WORKER = 1 << 26  # making tokens of them takes about as long as starting a process


@frozen
class Counted:
    """What `count_tokens` found."""

    shards: int
    samples: int
    tokens: int
    problems: int  # samples of which no tokens can be made; they count 0
    problem: str | None  # the first of them
    refusal: str | None  # why the counts are not in their store, but kept in the cache


class Block(NamedTuple):
    """Samples [first, end) of a shard."""

    shard: str
    first: int
    end: int


Found = tuple[npt.NDArray[np.uint32], int, SampleError | None]
"""The tokens of samples, of how many none can be made, and the first problem."""


def count_tokens(
    path: str,
    tokenize: Tokenizing,
    *,
    part: tuple[int, int] = (0, 1),
    workers: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Counted:
    """Count the tokens that `tokenize` makes of each sample of a dataset.

    Args:
        path: A folder of shards, one of them, or a pattern; of a prepared folder, all its parts.
            Or a URL of one, whose store gets the counts.
        tokenize: A `Tokenize` or `TokenizeChat`, which can be pickled.
        part: (n, of) counts the shards n, n + of, ... only.
        workers: Number of processes; by default one per 64 MiB, at most one per CPU.
        force: Replace the counts of another tokenizer, or of other fields.
        progress: Called when a block of samples is counted.

    Raises SpecError if there are no samples to count, or if there are other counts and no `force`;
    StructureError for a damaged shard; and the SampleError of the first sample if 100 in a row have
    none.
    """
    found, shards = _shards(located(path))
    shards = shards[part[0] :: part[1]]
    rows = sum(count for _, count in shards)
    if not rows:
        raise SpecError(f"{path}: part {part[0]} of {part[1]} has no samples. Use fewer parts.")
    files = [_File.of(*one, tokenize.fingerprint) for one in shards]
    others = [file.shard for file in files if file.has_others]
    if others and not force:
        raise SpecError(
            f"{path}: {len(others)} of its {len(files)} shards have counts of another tokenizer or "
            f"field, {others[0]} first. Pass --force to replace them, or count as before."
        )
    size = sum(Path(shard).stat().st_size for shard, _ in shards)
    workers = num_processes(workers, size // _BYTES_PER_WORKER)
    options, step = _options(found, shards[0][0], tokenize)
    counter = _Counter(files, step, progress)
    task = partial(_count, options, tokenize)
    with closing(
        map_in_processes(task, counter.blocks, workers=workers, preload=(__name__,))
    ) as results:
        counter.write(results)
    return counter.summary()


def _shards(path: str) -> tuple[SourceFormat, list[tuple[str, int]]]:
    """Return the format of a dataset, and its shards that have samples, with their number."""
    found = format_of(path)
    kind = found.shards
    if kind is None or kind.index or not issubclass(_class_of(found), ShardedSource):
        raise SpecError(
            f"{path}: tokens of its format are not counted. Name tars, JSONL, Parquet or Arrow "
            "files. Of others, declare `tokens_per_sample`."
        )
    prepared = prepared_at(path)
    if prepared is not None:
        named = [(f"{path}/{shard}", count) for shard, count in prepared.counts.items()]
    else:
        plain = find_plain(path, kind)
        named = [(plain.paths(n)[0], count) for n, count in enumerate(plain.counts)]
    return found, [(shard, count) for shard, count in named if count]


def _class_of(found: SourceFormat) -> type:
    return found.open if isinstance(found.open, type) else object


def _options(found: SourceFormat, shard: str, tokenize: Tokenizing) -> tuple[OpenOptions, int]:
    """Return how to open shards, without what is not counted; and the samples of a block."""
    reads = tokenize.reads
    options = OpenOptions(decoding=Decoding(part_filter=partial(_is_read, reads)))
    if found.keys and "columns" in keys_of(found.keys):
        names = getattr(open_format(found, shard, options), "columns", ())
        columns = tuple(name for name in names if _is_read(reads, name))
        options = evolve(options, keys={"columns": columns} if columns else {})
    run = open_format(found, shard, options).run_length or 1
    return options, run * max(_BLOCK // run, 1)


def _is_read(reads: Sequence[str], name: str) -> bool:
    """Return whether a part or column has one of some fields."""
    return any(one == name or one.startswith(f"{name}.") for one in reads)


def _count(options: OpenOptions, tokenize: Tokenizing, block: Block) -> Found:
    """Return the tokens of a block; runs in worker processes."""
    source = open_format(format_of(block.shard), block.shard, options)
    counts = np.zeros(block.end - block.first, np.uint32)
    problems, problem = 0, None
    for row, sample in enumerate(_samples(source, block)):
        try:
            if isinstance(sample, SampleError):
                raise sample
            counts[row] = min(len(tokenize(sample)["tokens"]), MOST)
        except SampleError as error:
            problems, problem = problems + 1, problem or error
    return counts, problems, problem


def _samples(source: Source, block: Block) -> Iterator[Sample | SampleError]:
    for first in range(block.first, block.end, _AT_ONCE):
        yield from source.read(np.arange(first, min(first + _AT_ONCE, block.end)))


@frozen
class _File:
    """The counts of a shard that has some samples, as far as they are there."""

    shard: str
    empty: ShardCounts  # before it has any
    begin: int  # samples that are counted
    is_complete: bool
    has_others: bool  # whether there are complete counts, but of another counter

    @classmethod
    def of(cls, shard: str, samples: int, counted_by: str) -> _File:
        version = version_of(shard)
        if version is None:
            raise StructureError("does not exist. Restore it.", shard=shard)
        unfinished = counts_path(shard, ".part")
        empty = ShardCounts(unfinished, counted_by, version.size, samples, total=0, done=0)
        has_others = False
        for path in (counts_path(shard), unfinished):
            own = version_of(path)
            # In a cache, what is of another version of the shard is removed with it.
            is_old = own is None or (own.mtime_ns < version.mtime_ns and not is_mirrored(path))
            found = None if is_old else _read(path)
            if found is None or (found.shard_size, found.samples) != (version.size, samples):
                continue
            is_complete = path != unfinished
            if is_complete and found.done != samples:
                continue
            if found.counted_by == counted_by:
                begin = min(found.done, samples)
                return cls(shard, empty, begin, is_complete=is_complete, has_others=has_others)
            has_others |= is_complete
        return cls(shard, empty, 0, is_complete=False, has_others=has_others)

    def blocks(self, step: int) -> Iterator[Block]:
        """Yield the samples that are not counted."""
        samples = self.empty.samples
        for first in range(self.begin, samples, step):
            yield Block(self.shard, first, min(first + step, samples))

    def write(self, results: Iterable[npt.NDArray[np.uint32]]) -> None:
        """Write the counts of all blocks, one after another; then the file gets its name."""
        path = Path(self.empty.path)
        with path.open("r+b" if self.begin else "wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                problem = "another program counts the tokens of this shard"
                raise SpecError(f"{self.shard}: {problem}. Wait for it.") from error
            file.write(self.empty.header)
            file.truncate(file.seek(HEADER.size + self.begin * DTYPE.itemsize))
            for counts in results:
                file.write(counts.astype(DTYPE).tobytes())
                file.flush()
                os.fsync(file.fileno())  # what is there after a crash of the machine was counted
            total = int(np.fromfile(path, DTYPE, offset=HEADER.size).sum(dtype=np.int64))
            file.seek(0)
            file.write(self.empty._replace(total=total).header)
        path.chmod(Path(self.shard).stat().st_mode & 0o666 | 0o600)
        path.replace(counts_path(self.shard))


def _read(path: str) -> ShardCounts | None:
    try:
        return read_counts(path)
    except StructureError:  # it is written again
        return None


class _Counter:
    """Writes the counts of shards, and counts what goes wrong."""

    def __init__(self, files: list[_File], step: int, progress: Progress | None) -> None:
        self.files, self.step, self.progress = files, step, progress
        self.blocks = [block for file in files for block in file.blocks(step)]
        self.samples = sum(file.empty.samples for file in files)
        self.before = sum(file.begin for file in files)  # counted by earlier calls
        self.counted = self.problems = self.in_a_row = 0
        self.problem: SampleError | None = None
        self.refusal: str | None = None

    def write(self, results: Iterator[Found]) -> None:
        """Write the counts of all blocks."""
        for file in self.files:
            if not file.is_complete:
                file.write(self._counts(islice(results, len(list(file.blocks(self.step))))))
            self._publish(file)

    def _publish(self, file: _File) -> None:
        """Write counts to the store of their shard, unless they are there, or it is read-only."""
        path = counts_path(file.shard)
        is_there = facts_of(path) is not None
        if self.refusal is not None or (is_there and file.is_complete):
            return
        try:
            publish(path)
        except ReadOnlyError as error:
            if is_there:  # a run would have the counts that are there
                raise
            self.refusal = str(error)

    def _counts(self, results: Iterable[Found]) -> Iterator[npt.NDArray[np.uint32]]:
        """Yield the counts of blocks. Raises the first problem if nothing else comes."""
        for counts, problems, problem in results:
            self.counted, self.problems = self.counted + len(counts), self.problems + problems
            self.problem = self.problem or problem
            self.in_a_row = self.in_a_row + problems if problems == len(counts) else 0
            if problem is not None and self.in_a_row >= _TOLERATED:
                raise problem
            yield counts
            if self.progress:
                self.progress(self.before + self.counted, self.samples)
        if self.problem is not None and self.problems == self.counted:
            raise self.problem

    def summary(self) -> Counted:
        """Return what was found, now and before."""
        counts = [read_counts(counts_path(file.shard)) for file in self.files]
        tokens = sum(one.total for one in counts if one is not None)
        problem = None if self.problem is None else str(self.problem)
        return Counted(len(counts), self.samples, tokens, self.problems, problem, self.refusal)
