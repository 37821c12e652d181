"""The samples of one file of tokens, and the keys that say what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from energy_data.core import recipe
from energy_data.core.arrays import Int64s
from energy_data.core.recipe import COUNT, FLAG, TOKEN, one_of
from energy_data.data.tokens.layouts import TokenFile, Values
from energy_data.errors import SpecError
from energy_data.remote.cache_space import Range


@frozen(kw_only=True, slots=False)  # a base next to others
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
    max_seq_len: int | None = recipe.key(
        COUNT,
        "Of windows: the largest `seq_len` that any stage reads them with. Default: that of the "
        "stages of this file.",
        "max_seq_len: 131072",
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

    @property
    def overlap(self) -> int:
        """The number of tokens that a window has in common with the next one."""
        return (self.seq_len or 0) - (self.stride or self.seq_len or 0)

    @property
    def without_lengths(self) -> TokenKeys:
        """The keys without those of the lengths of windows."""
        return evolve(self, seq_len=None, stride=None, max_seq_len=None)

    def check_file(self, file: TokenFile, path: str) -> None:
        """Raise SpecError for keys that do not fit together, or not to the file."""
        window, length = self.seq_len, file.row_length
        others = self.stride or self.max_seq_len
        if length is not None and (others or window not in (None, length)):
            problem = f"it has rows of {length} tokens. Remove the keys of windows"
        elif window is None and (others or self.cu_seqlens):
            problem = "stride, max_seq_len and cu_seqlens are for windows. Give their `seq_len`"
        elif self.stride is not None and self.stride > (window or 0):
            problem = f"stride must be at most `seq_len`, which is {window}, found {self.stride}"
        elif self.max_seq_len is not None and (wrong := self._misfit(self.max_seq_len)):
            problem = wrong
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

    def _misfit(self, longest: int) -> str:
        """Return why windows do not fill the longest ones; empty: they do."""
        length, overlap = self.seq_len or 0, self.overlap
        stride = length - overlap
        if longest < length:
            return f"seq_len must be at most `max_seq_len`, which is {longest}, found {length}"
        if (longest - overlap) % stride:
            less = f", less the {overlap} that windows overlap" if overlap else ""
            return (
                f"max_seq_len {longest} is no multiple of `seq_len` {length}{less}: the longest "
                f"windows must be whole numbers of all others"
            )
        return ""


_APART = 512  # documents between two bounds that are read one by one

Arrays = Sequence[npt.NDArray[Any]] | npt.NDArray[Any]
_NONE = np.empty(0, np.int64)


class Span(NamedTuple):
    """Tokens [begin, end) of a file, counting those put before and after documents."""

    begin: int
    end: int
    document: int  # that `begin` is in
    bounds: Int64s  # where it begins, and where each document up to `end` ends

    def starts(self) -> Int64s:
        """Return where in the span documents begin, from 0 on, and its length; int64."""
        return np.unique(np.clip(self.bounds - self.begin, 0, self.end - self.begin))


class FileReader:
    """The samples of one file.

    window: tokens of a sample; 0: samples are documents. count: the number of its samples.
    """

    def __init__(self, file: TokenFile, keys: TokenKeys, shard: str) -> None:
        self.file, self.keys, self.shard = file, keys, shard
        self.window = keys.seq_len or file.row_length or 0
        self.stride = keys.stride or self.window
        self.chunk = (keys.max_seq_len or self.window) - (self.window - self.stride)
        self._is_plain = bool(self.window) and not (keys.extra or keys.cu_seqlens)
        documents = file.documents
        self.num_documents = 0 if documents is None else documents.count
        self.num_tokens = file.tokens.count + self.num_documents * keys.extra
        if self.window:
            tokens = max(self.num_tokens - (self.window - self.stride), 0)
            self.count = tokens // self.chunk * (self.chunk // self.stride)
        else:
            self.count = self.num_documents

    def ranges(self, first: int, end: int) -> list[Range]:
        """Return the bytes of samples [first, end), of each column."""
        documents, extra = self.file.documents, self.keys.extra
        if documents is None or (self.window and not extra):
            begin, stop = first * self.stride, (end - 1) * self.stride + self.window
        elif self.window:  # some of these tokens are in no file
            spans = self._span(first), self._span(end - 1)
            begin = spans[0].begin - extra * (spans[0].document + 1)
            stop = spans[1].end - extra * spans[1].document
        else:
            begin, stop = (int(documents.bound(row, row + 1)[0]) for row in (first, end))
        begin, stop = max(begin, 0), min(stop, self.file.tokens.count)
        return [
            (
                one.path,
                one.begin + begin * one.dtype.itemsize,
                one.begin + stop * one.dtype.itemsize,
            )
            for one in self.file.columns.values()
        ]

    def lengths(self, rows: Int64s) -> Int64s:
        """Return the tokens of each sample. Neighbouring documents are read together."""
        documents = self.file.documents
        if self.window or documents is None:
            return np.full(len(rows), self.window)
        found, order = np.empty(len(rows), np.int64), rows.argsort()
        ordered = rows[order]
        for places in np.split(order, np.flatnonzero(np.diff(ordered) > _APART) + 1):
            if len(places):
                first = int(rows[places[0]])
                bounds = documents.bound(first, int(rows[places[-1]]) + 2)
                found[places] = np.diff(bounds)[rows[places] - first] + self.keys.extra
        return found

    def total_length(self, first: int, end: int) -> int:
        """Return the tokens of the samples [first, end)."""
        documents = self.file.documents
        if self.window or documents is None:
            return (end - first) * self.window
        begins = [int(documents.bound(row, row + 1)[0]) for row in (first, end)]
        return begins[1] - begins[0] + (end - first) * self.keys.extra

    def fields(self, rows: list[int]) -> dict[str, Arrays]:
        """Return the fields of samples, an array for each; windows are rows of one array."""
        columns, fields = self.file.columns.items(), dict[str, Arrays]()
        if self._is_plain:
            begins = [row * self.stride for row in rows]
            fields |= {name: values.rows(begins, self.window) for name, values in columns}
        else:
            spans = [self._span(row) for row in rows]
            for name, values in columns:
                fields[name] = [self._values(values, span) for span in spans]
            if self.keys.cu_seqlens:
                fields |= _bounds([span.starts() for span in spans])
        if self.keys.max_seq_len and self.file.loss_mask is None:
            fields["loss_mask"] = np.ones((len(rows), self.window), bool)
        return fields

    def part(self, begin: int, end: int) -> dict[str, Arrays]:
        """Return the fields of a sample that is a part of a window: from token `begin` on.

        end: where the next part begins. The rest of the sample is filled with 0, which is a
        document of its own, and which the loss mask leaves out.
        """
        length = end - begin + self.window - self.stride
        is_plain = self._is_plain
        span = Span(begin, begin + length, 0, _NONE) if is_plain else self._between(begin, length)
        fields: dict[str, Arrays] = {
            name: [_filled(self._values(values, span), self.window)]
            for name, values in self.file.columns.items()
        }
        if self.file.loss_mask is None:
            fields["loss_mask"] = [_filled(np.ones(length, bool), self.window)]
        if self.keys.cu_seqlens:
            fields |= _bounds([np.append(span.starts(), self.window)])
        return fields

    def _span(self, row: int) -> Span:
        """Return where a sample is."""
        documents, extra = self.file.documents, self.keys.extra
        assert documents is not None
        if not self.window:
            bounds = documents.bound(row, row + 2) + extra * np.arange(row, row + 2)
            return Span(int(bounds[0]), int(bounds[1]), row, bounds)
        return self._between(row * self.stride, self.window)

    def _between(self, begin: int, length: int) -> Span:
        """Return so many tokens from `begin` on, with their documents."""
        end, documents = begin + length, self.file.documents
        assert documents is not None
        return Span(begin, end, *documents.between(begin, end, self.keys.extra))

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


def _filled(values: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return values followed by zeros."""
    found = np.zeros(size, values.dtype)
    found[: len(values)] = values
    return found


def _bounds(starts: list[Int64s]) -> dict[str, Arrays]:
    """Return the fields that say where the documents of samples begin."""
    return {
        "cu_seqlens": [one.astype(np.int32) for one in starts],
        "position_ids": [_positions(one) for one in starts],
    }


def _positions(starts: Int64s) -> Int64s:
    """Return the position of each token in its document; starts: of the documents, and the end."""
    return np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts))
