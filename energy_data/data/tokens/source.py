"""Tokens as samples: documents, or windows of a fixed length over all documents of a file.

source = open_source("/data/corpus.bin", seq_len=4096)
source.read(np.arange(256))  # -> [{"__key__": "0", "tokens": int64 tensor [4096]}, ...]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from attrs import astuple, frozen

from energy_data.core import recipe
from energy_data.core.batch_memory import RowBlock, make_row, new_rows
from energy_data.core.lazy import cached_property
from energy_data.core.recipe import COUNT, FLAG, TOKEN, one_of
from energy_data.core.sample import Sample, SampleSource
from energy_data.data.files.local import open_file
from energy_data.data.shards import some_bytes
from energy_data.data.source import OpenOptions, Source, reopen
from energy_data.data.tokens.layouts import Int64s, TokenFile, Values, open_tokens
from energy_data.errors import SampleError, SpecError, StructureError


@frozen(kw_only=True)
class TokenKeys:
    """The keys of a dataset of tokens."""

    seq_len: int | None = recipe.key(
        COUNT,
        "Of token files: length of a window, in tokens. Without it, samples are documents.",
        "seq_len: 4096",
        default=None,
    )
    stride: int | None = recipe.key(
        COUNT,
        "Of windows: tokens from the beginning of one to that of the next. Default: `seq_len`.",
        "stride: 4095",
        default=None,
    )
    add_bos: int | None = recipe.key(
        TOKEN, "Of token files: the token put before each document.", "add_bos: 1", default=None
    )
    add_eos: int | None = recipe.key(
        TOKEN, "Of token files: the token put after each document.", "add_eos: 2", default=None
    )
    cu_seqlens: bool = recipe.key(
        FLAG,
        "Of windows: whether samples have `cu_seqlens` and `position_ids` of their documents.",
        "cu_seqlens: true",
        default=False,
    )
    dtype: str | None = recipe.key(
        one_of("uint8", "uint16", "uint32", "int16", "int32", "int64"),
        "Of files of raw integers: the type of a token.",
        "dtype: uint16",
        default=None,
    )

    @property
    def extra(self) -> int:
        """The number of tokens put before and after each document."""
        return (self.add_bos is not None) + (self.add_eos is not None)

    def check_file(self, file: TokenFile, path: str) -> None:
        """Raise SpecError for keys that do not fit together, or not to the file."""
        window, length = self.seq_len, file.row_length
        if length is not None and (self.stride or window not in (None, length)):
            problem = f"it has rows of {length} tokens. Remove `seq_len` and `stride`"
        elif window is None and (self.stride or self.cu_seqlens):
            problem = "stride and cu_seqlens are for windows. Give their `seq_len`"
        elif self.stride is not None and self.stride > (window or 0):
            problem = f"stride must be at most `seq_len`, which is {window}, found {self.stride}"
        elif file.documents is None and not (window or length):
            problem = (
                "it does not say where documents begin, so it has only windows. Give `seq_len`"
            )
        elif file.documents is None and (self.extra or self.cu_seqlens):
            problem = (
                "it does not say where documents begin, and add_bos, add_eos and cu_seqlens need "
                "that. Use .bin with .idx, or .ds with .ds.index"
            )
        else:
            return
        raise SpecError(f"{path}: {problem}.")


Arrays = Sequence[npt.NDArray[Any]] | npt.NDArray[Any]

_make_source = partial(tuple.__new__, SampleSource)  # of a tuple; faster than the class


class Span(NamedTuple):
    """Tokens [begin, end) of a file, counting those put before and after documents."""

    begin: int
    end: int
    document: int  # that `begin` is in
    bounds: Int64s  # where it begins, and where each document up to `end` ends

    def starts(self) -> Int64s:
        """Return where in the span documents begin, from 0 on, and its length; int64."""
        return np.unique(np.clip(self.bounds - self.begin, 0, self.end - self.begin))


class TokenSource(Source):
    """Samples of a file of tokens: its documents, or windows of `seq_len` tokens.

    A sample has `tokens`, int64 [tokens]; of a file with a loss mask also `loss_mask`, bool
    [tokens]; with `cu_seqlens` also `cu_seqlens`, int32 [documents + 1], and `position_ids`, int64
    [tokens], which start again at 0 with each document.

    Opening it reads headers only. Raises SpecError for keys that do not fit the file,
    StructureError if the file is damaged.
    """

    def __init__(self, path: str, options: OpenOptions) -> None:
        options.check_unprepared(path)
        self.path, self.options, self.keys = path, options, TokenKeys(**options.keys)
        self.file = open_tokens(path, self.keys.dtype)
        self.keys.check_file(self.file, path)
        self._window = self.keys.seq_len or self.file.row_length or 0  # 0: samples are documents
        self._stride = self.keys.stride or self._window
        self._is_plain = bool(self._window) and not (self.keys.extra or self.keys.cu_seqlens)
        self._first, self._length = options.range_of(self._count(), path)
        self._name = Path(path).name
        self.bytes_read: int = 0
        self.tokens_read: int = 0

    def _count(self) -> int:
        documents, total = self.file.documents, self.file.tokens.count
        if documents is not None:
            total += documents.count * self.keys.extra
            if not self._window:
                return documents.count
        if total < self._window:
            problem = f"it has {total:,} tokens, fewer than a window of {self._window:,}"
            raise SpecError(f"{self.path}: {problem}. Lower `seq_len`, or remove the dataset.")
        return (total - self._window) // self._stride + 1

    def __len__(self) -> int:
        return self._length

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits that do not depend on the path, and change with the samples.

        They depend on the keys, and on 4 KiB at 32 places of each file.
        """
        digest = hashlib.blake2b(digest_size=8)
        for path in self.file.paths:
            digest.update(some_bytes(open_file(path)))
        facts = astuple(self.keys), self.file.tokens.dtype.str, self._first, self._length
        digest.update(repr(facts).encode())
        return digest.hexdigest()

    @property
    def tokens_per_sample(self) -> Fraction:
        """The length of a window, or the mean length of the documents of the file."""
        if self._window:
            return Fraction(self._window)
        assert self.file.documents is not None
        return Fraction(self.file.tokens.count, self.file.documents.count) + self.keys.extra

    @property
    def can_read_rows(self) -> bool:
        """Whether samples are windows, whose tokens can be rows of one tensor."""
        return bool(self._window) and type(self) is TokenSource

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return reopen, (type(self), self.path, self.options, self.fingerprint)

    def row_of(self, index: int) -> int:
        """Return the number of a document or window in the file."""
        return index + self._first

    def read(self, indices: Int64s) -> list[Sample | SampleError]:
        """Return the samples of `indices`, in that order."""
        wanted = np.asarray(indices, np.int64)
        return TokenSource.read_together([self], np.zeros_like(wanted), wanted)

    @classmethod
    def read_together(
        cls, sources: Sequence[Self], numbers: Int64s, indices: Int64s, *, rows: bool = False
    ) -> list[Sample | SampleError]:
        """Return sample `indices[n]` of `sources[numbers[n]]` for each n.

        rows: windows of equal length are rows of one tensor.
        """
        window, *others = {source._window for source in sources}
        block = new_rows(len(indices), (window,), torch.int64) if rows and not others else None
        if len(sources) == 1:
            return sources[0]._read(indices, slice(None), block)
        samples: list[Sample | SampleError] = [{}] * len(indices)
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            found = sources[number]._read(indices[places], places, block)
            for place, sample in zip(places.tolist(), found, strict=True):
                samples[place] = sample
        return samples

    def _read(
        self, indices: Int64s, places: Int64s | slice, block: RowBlock | None
    ) -> list[Sample | SampleError]:
        """Return the samples of `indices`; with a block, their tokens are its rows `places`."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < self._length:
            raise IndexError(f"one of {indices.tolist()} of {self._length} samples")
        rows = (indices + self._first).tolist()
        try:
            fields = self._fields(rows)
        except StructureError as error:
            error.dataset = self.path
            raise
        tokens = fields.pop("tokens")
        number = sum(map(len, tokens))
        self.tokens_read += number
        self.bytes_read += number * self.file.tokens.dtype.itemsize
        if block is None:
            made: list[Any] = [torch.from_numpy(one.astype(np.int64)) for one in tokens]
        else:
            np.frombuffer(block.data, np.int64).reshape(-1, self._window)[places] = tokens
            numbers = range(len(block.tensor))[places] if type(places) is slice else places.tolist()
            made = [make_row((block.tensor, number)) for number in numbers]
        path, name, flavors = self.path, self._name, self.options.subflavors
        samples: list[Sample] = [
            {
                "__key__": str(row),
                "__subflavors__": flavors,
                "__sources__": (_make_source((path, name, row)),),
                "tokens": value,
            }
            for row, value in zip(rows, made, strict=True)
        ]
        for field, arrays in fields.items():
            for sample, array in zip(samples, arrays, strict=True):
                sample[field] = torch.tensor(array)
        return [*samples]

    def _fields(self, rows: list[int]) -> dict[str, Arrays]:
        """Return the fields of samples, an array for each; windows are rows of one array."""
        columns = self.file.columns.items()
        if self._is_plain:
            begins = [row * self._stride for row in rows]
            return {name: values.rows(begins, self._window) for name, values in columns}
        spans = [self._span(row) for row in rows]
        fields: dict[str, Arrays] = {}
        for name, values in columns:
            fields[name] = [self._values(values, span) for span in spans]
        if self.keys.cu_seqlens:
            starts = [span.starts() for span in spans]
            fields["cu_seqlens"] = [one.astype(np.int32) for one in starts]
            fields["position_ids"] = [_positions(one) for one in starts]
        return fields

    def _span(self, row: int) -> Span:
        """Return where a sample is."""
        documents, extra = self.file.documents, self.keys.extra
        assert documents is not None
        if not self._window:
            bounds = documents.bound(row, row + 2) + extra * np.arange(row, row + 2)
            return Span(int(bounds[0]), int(bounds[1]), row, bounds)
        begin = row * self._stride
        return Span(
            begin, begin + self._window, *documents.between(begin, begin + self._window, extra)
        )

    def _values(self, values: Values, span: Span) -> npt.NDArray[Any]:
        """Return the values of a sample in one of the files."""
        if self.keys.extra:
            return self._framed(values, span)
        return values.read(span.begin, span.end)

    def _framed(self, values: Values, span: Span) -> npt.NDArray[Any]:
        """Return the values of a sample with the tokens before and after documents."""
        bounds, size = span.bounds - span.begin, span.end - span.begin
        is_mask = values.dtype.kind == "b"
        found = np.ones(size, bool if is_mask else np.int64)
        is_put = np.zeros(size, bool)
        for token, at in ((self.keys.add_bos, bounds[:-1]), (self.keys.add_eos, bounds[1:] - 1)):
            if token is not None:
                inside = at[(at >= 0) & (at < size)]
                found[inside], is_put[inside] = True if is_mask else token, True
        # Of the tokens of the first document, those before the span are left out.
        before = -int(bounds[0]) - (self.keys.add_bos is not None)
        length = int(bounds[1] - bounds[0]) - self.keys.extra
        first = span.begin + int(bounds[0]) - self.keys.extra * span.document
        first += min(max(before, 0), length)
        found[~is_put] = values.read(first, first + size - int(is_put.sum()))
        return found


def _positions(starts: Int64s) -> Int64s:
    """Return the position of each token in its document; starts: of the documents, and the end."""
    return np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts))
