"""Tokens as samples: documents, or windows of a fixed length over all documents of a file.

source = open_source("/data/corpus.bin", seq_len=4096)
source.read(np.arange(256))  # -> [{"__key__": "0", "tokens": int64 tensor [4096]}, ...]
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from attrs import astuple

from energy_data.core.arrays import Int64s
from energy_data.core.batch_memory import RowBlock, make_row, new_rows
from energy_data.core.cut import PARTS, WHOLE, Cut
from energy_data.core.lazy import cached_property
from energy_data.core.sample import Sample, make_source
from energy_data.data.files.local import LocalFile, open_file
from energy_data.data.filter_index import FilterIndex
from energy_data.data.part import names_dataset, prepared_at
from energy_data.data.shards import NO_INDEX, Scan, ShardKind, plain_shards, some_bytes
from energy_data.data.source import OpenOptions, Source, Unit, reopen
from energy_data.data.tokens.layouts import open_tokens
from energy_data.data.tokens.reader import Arrays, FileReader, TokenKeys
from energy_data.errors import SampleError, SpecError, shown
from energy_data.remote.cache_space import NEAR, Range, merged
from energy_data.remote.mirror_paths import is_mirrored

_PROBES = 32  # places of the files that a fingerprint reads


class TokenSource(Source):
    """Samples of files of tokens: their documents, or windows of `seq_len` tokens.

    A sample has `tokens`, int64 [tokens]; of a file with a loss mask, or with `max_seq_len`, also
    `loss_mask`, bool [tokens]; with `cu_seqlens` also `cu_seqlens`, int32 [documents + 1], and
    `position_ids`, int64 [tokens], which start again at 0 with each document.

    Opening it reads headers only. Raises SpecError for keys that do not fit the files,
    StructureError if a file is damaged.
    """

    kind: ClassVar[ShardKind]

    def __init__(self, path: str, options: OpenOptions) -> None:
        self.path, self.options, self.keys = path, options, TokenKeys(**options.keys)
        root, shards = _files(path, options, self.kind)
        self._readers = [self._reader(root, shard) for shard in shards]
        windows = {reader.window for reader in self._readers}
        self._window = windows.pop()
        if windows:
            problem = f"its files have rows of {self._window} and of {windows.pop()} tokens"
            raise SpecError(f"{path}: {problem}. Name files with rows of one length.")
        self._ends = list(accumulate(reader.count for reader in self._readers))
        if not self._ends[-1]:
            most = max(reader.num_tokens for reader in self._readers)
            name, longest = "seq_len", self._window
            if self.keys.max_seq_len is not None:
                name, longest = "max_seq_len", self.keys.max_seq_len
            problem = f"its largest file has {most:,} tokens, less than a window of {longest:,}"
            raise SpecError(f"{path}: {problem}. Lower `{name}`, or remove the dataset.")
        self._cut = self._checked_cut(self._readers[0])
        self._kept = None if options.filter is None else self._filter(options.filter, shards)
        chunk = self._cut.samples
        total = self._ends[-1] if self._kept is None else len(self._kept)
        first, length = options.range_of(total // chunk, path)
        self._first, self._length = first * chunk, length * chunk
        self.bytes_read: int = 0
        self.tokens_read: int = 0

    def _reader(self, root: str, shard: str) -> FileReader:
        path = os.path.join(root, shard)  # noqa: PTH118 - many, and a shard may be a whole path
        file = open_tokens(path, self.keys.dtype)
        self.keys.check_file(file, path)
        return FileReader(file, self.keys, shard)

    def _filter(self, name: str, shards: list[str]) -> FilterIndex:
        """Return the documents that a filter index keeps."""
        if self._window:
            problem = f"the filter index {name!r} keeps documents, and its samples are windows"
            raise SpecError(f"{self.path}: {problem}. Remove `filter`, or `seq_len`.")
        counts = [reader.count for reader in self._readers]
        prepared = prepared_at(self.path)
        every = dict(zip(shards, counts, strict=True)) if prepared is None else prepared.counts
        return FilterIndex(self.path, name, shards, counts, every)

    def _checked_cut(self, reader: FileReader) -> Cut:
        if not reader.window:
            return WHOLE
        if (tokens := self._ends[-1] * reader.stride) * reader.chunk >= PARTS:
            problem = f"it has {tokens:,} tokens, too many for windows of {reader.chunk:,} tokens"
            raise SpecError(f"{self.path}: {problem}. Make several datasets of its files.")
        return Cut(reader.chunk, reader.stride)

    @property
    def is_filtered(self) -> bool:
        """Whether it has only the documents that a filter index keeps."""
        return self._kept is not None

    def check_files(self) -> None:
        """Raise StructureError if the filter index does not fit the files."""
        if self._kept is not None:
            self._kept.check()

    @property
    def cut(self) -> Cut:
        """The tokens of a window, and of the longest one that a stage reads."""
        return self._cut

    @property
    def is_remote(self) -> bool:
        """Whether its files are in a cache of an object store."""
        return is_mirrored(self.path)

    def ranges(self, first: int, count: int) -> Sequence[Range] | None:
        """Return the bytes of the tokens of samples, in all columns."""
        at, end = first + self._first, first + self._first + count
        if self._kept is None:
            return self._ranges(at, end)
        rows = self._kept.rows(np.arange(at, end)).tolist()
        return merged((one for row in rows for one in self._ranges(row, row + 1)), NEAR)

    def _ranges(self, at: int, end: int) -> list[Range]:
        """Return the bytes of samples of all files, before a filter."""
        found = list[Range]()
        while at < end:
            number = bisect_right(self._ends, at)
            before = self._ends[number] - self._readers[number].count
            stop = min(end, self._ends[number])
            found += self._readers[number].ranges(at - before, stop - before)
            at = stop
        return found

    def __len__(self) -> int:
        return self._length

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits that do not depend on the path, and change with the samples.

        They depend on the keys, but of windows only on the longest one that a stage reads; on the
        names and sizes of several files, and on 4 KiB at 32 places: of one file and of its index,
        or of up to 32 of several.
        """
        digest, readers = hashlib.blake2b(digest_size=8), self._readers
        chosen = np.unique(np.linspace(0, len(readers) - 1, _PROBES).astype(np.int64)).tolist()
        with names_dataset(self.path):
            for number in chosen:
                for path in readers[number].file.paths:
                    digest.update(some_bytes(open_file(path), _PROBES // len(chosen)))
        named = [(one.shard, one.num_tokens) for one in readers] if len(readers) > 1 else ()
        facts = astuple(self.keys.without_lengths), readers[0].file.tokens.dtype.str, named
        cut, overlap = self._cut, self._window - readers[0].stride
        chunks = cut.chunk, overlap, self._first // cut.samples, self._length // cut.samples
        kept = () if self._kept is None else self._kept.facts
        digest.update(repr((*facts, *chunks, *kept)).encode(errors="surrogateescape"))
        return digest.hexdigest()

    def costs(self, indices: Int64s, unit: Unit) -> Int64s | None:
        """Return the tokens of each sample; None for bytes."""
        if unit != "tokens":
            return None
        found = np.empty(len(indices), np.int64)
        with names_dataset(self.path):
            for reader, places, rows in self._by_file(np.asarray(indices, np.int64)):
                found[places] = reader.lengths(rows)
        return found

    def total_cost(self, unit: Unit) -> int | None:
        """Return the tokens of all samples, at two small reads of each file; None for bytes."""
        if unit != "tokens" or self._kept is not None:
            return super().total_cost(unit)
        total, end = 0, self._first + self._length
        with names_dataset(self.path):
            for reader, last in zip(self._readers, self._ends, strict=True):
                before = last - reader.count
                first, stop = max(self._first - before, 0), min(end - before, reader.count)
                total += reader.total_length(first, stop) if first < stop else 0
        return total

    @property
    def can_read_rows(self) -> bool:
        """Whether samples are windows, whose tokens can be rows of one tensor."""
        return bool(self._window)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return reopen, (type(self), self.path, self.options, self.fingerprint)

    def rows_of(self, indices: Sequence[int]) -> list[int]:
        """Return the numbers of documents or windows, of all files."""
        cut = self._cut
        whole = [one if one < PARTS else cut.bounds(one)[0] // cut.stride for one in indices]
        rows = np.array(whole, np.int64) + self._first
        found: list[int] = (rows if self._kept is None else self._kept.rows(rows)).tolist()
        return found

    def read(self, indices: Int64s) -> list[Sample | SampleError]:
        """Return the samples of `indices`, in that order."""
        wanted = np.asarray(indices, np.int64)
        return type(self).read_together([self], np.zeros_like(wanted), wanted)

    @classmethod
    def read_together(
        cls, sources: Sequence[Self], numbers: Int64s, indices: Int64s, *, rows: bool = False
    ) -> list[Sample | SampleError]:
        """Return sample `indices[n]` of `sources[numbers[n]]` for each n.

        rows: windows of equal length are rows of one tensor.
        """
        import torch

        window, *others = {source._window for source in sources}
        block = new_rows(len(indices), (window,), torch.int64) if rows and not others else None
        samples: list[Sample | SampleError] = [{}] * len(indices)
        for number, places in _places(numbers):
            source = sources[number]
            with names_dataset(source.path):
                source._read(indices[places], places, samples, block)
        return samples

    def _read(
        self,
        indices: Int64s,
        places: Int64s,
        samples: list[Sample | SampleError],
        block: RowBlock | None,
    ) -> None:
        """Put the samples of `indices` at `places`; with a block, their tokens are its rows."""
        if len(indices) and indices.max() >= PARTS:
            is_part = indices >= PARTS
            for index, place in zip(indices[is_part].tolist(), places[is_part], strict=True):
                self._read_part(index, place, samples, block)
            indices, places = indices[~is_part], places[~is_part]
        for reader, mine, rows in self._by_file(indices):
            here = rows.tolist()
            found = self._samples(reader, here, reader.fields(here), places[mine], block)
            for place, sample in zip(places[mine].tolist(), found, strict=True):
                samples[place] = sample

    def _by_file(self, indices: Int64s) -> Iterator[tuple[FileReader, Int64s, Int64s]]:
        """Yield each file with the places in `indices` that are in it, and their rows there."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < self._length:
            raise IndexError(f"one of {indices.tolist()} of {self._length} samples")
        rows = indices + self._first
        if self._kept is not None:
            rows = self._kept.rows(rows)
        files = np.searchsorted(self._ends, rows, side="right")
        for number, mine in _places(files):
            reader = self._readers[number]
            yield reader, mine, rows[mine] - (self._ends[number] - reader.count)

    def _read_part(
        self, index: int, place: Any, samples: list[Sample | SampleError], block: RowBlock | None
    ) -> None:
        """Put a part of a window at `place`; with a block, its tokens are that row."""
        if not self._cut.has(index, self._length):
            raise IndexError(f"part {index - PARTS} of {self._length} samples")
        stride, first = self._cut.stride, self._first
        begin, end = self._cut.bounds(index)
        window, inside = divmod(begin, stride)
        number = bisect_right(self._ends, window + first)
        reader = self._readers[number]
        row = window + first - (self._ends[number] - reader.count)
        begin, end = row * stride + inside, row * stride + inside + end - begin
        fields = reader.part(begin, end)
        (sample,) = self._samples(reader, [row], fields, np.array([place]), block)
        sample["__key__"] += f"[{inside}:{inside + end - begin}]"
        samples[place] = sample

    def _samples(
        self,
        reader: FileReader,
        rows: list[int],
        fields: dict[str, Arrays],
        places: Int64s,
        block: RowBlock | None,
    ) -> list[Sample]:
        """Return samples of a file; with a block, their tokens are its rows `places`."""
        import torch

        tokens = fields.pop("tokens")
        number = tokens.size if isinstance(tokens, np.ndarray) else sum(map(len, tokens))
        self.tokens_read += number
        self.bytes_read += number * reader.file.tokens.dtype.itemsize
        if block is None:
            made: list[Any] = [torch.from_numpy(one.astype(np.int64)) for one in tokens]
        else:
            in_order = len(places) == len(block.tensor)  # then it is faster without an index
            of_block = np.frombuffer(block.data, np.int64).reshape(-1, self._window)
            of_block[slice(None) if in_order else places] = tokens
            made = [make_row((block.tensor, place)) for place in places.tolist()]
        path, shard, flavors = shown(self.path), reader.shard, self.options.subflavors
        samples: list[Sample] = [
            {
                "__key__": str(row),
                "__subflavors__": flavors,
                "__sources__": (make_source((path, shard, row)),),
                "tokens": value,
            }
            for row, value in zip(rows, made, strict=True)
        ]
        for field, arrays in fields.items():
            for sample, array in zip(samples, arrays, strict=True):
                sample[field] = torch.tensor(array)
        return samples


def _places(numbers: Int64s) -> Iterator[tuple[int, Int64s]]:
    """Yield each distinct number, and where it is."""
    if len(numbers) and (numbers == numbers[0]).all():  # as mostly, at a third of the cost
        yield int(numbers[0]), np.arange(len(numbers))
        return
    for number in np.unique(numbers).tolist():
        yield number, np.flatnonzero(numbers == number)


def _scan(file: LocalFile) -> Scan:
    """Return the number of documents or rows; a file that does not have them counts as one."""
    rows = int(file.size > 0)
    if not file.path.endswith(".bin") or Path(file.path).with_suffix(".idx").is_file():
        found = open_tokens(file.path)
        if found.documents is not None:
            rows = found.documents.count
        elif found.row_length is not None:
            rows = found.tokens.count // found.row_length
    return Scan(NO_INDEX, [], ["tokens"], rows=rows)


MEGATRON = ShardKind(".bin", (), _scan)
DATATROVE = ShardKind(".ds", (), _scan)
ARRAYS = ShardKind(".npy", (), _scan)


class MegatronSource(TokenSource):
    """Samples of Megatron's files, or of raw integers."""

    kind = MEGATRON


class DatatroveSource(TokenSource):
    """Samples of files of datatrove."""

    kind = DATATROVE


class ArraySource(TokenSource):
    """Samples of arrays of numpy."""

    kind = ARRAYS


def _files(path: str, options: OpenOptions, kind: ShardKind) -> tuple[str, list[str]]:
    """Return the files of a part of a dataset, relative to a folder."""
    prepared = prepared_at(path)
    if prepared is not None:
        part = prepared.part(kind, options.split_part, options.split_config)
        if part.excluded:
            problem = (
                "its split.yaml excludes samples, and the number of those depends on `seq_len`"
            )
            raise SpecError(f"{path}: {problem}. Exclude whole files.")
        return part.root, part.shards
    options.check_unprepared(path)
    return plain_shards(path, kind)[:2]
