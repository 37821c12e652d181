"""Samples out of tars, a block at a time: the hot path.

A block is read in rounds. A round reads the next bytes of every sample, neighbours together; then
all first headers are parsed at once, all second ones, and so on while they are in memory. Small
samples need one round. Of large ones a round reads the headers only, and their payload is read
into memory of its own: it is never copied.

Whatever is not plain is read again by `read_alone`, header by header; it alone makes errors.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, pairwise, starmap
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from energy_data import compiled
from energy_data.core.sample import Sample, SampleSource
from energy_data.errors import SampleError
from energy_data.sources.decode import Buffer, decode_npy, decode_text, skip_part
from energy_data.sources.raw_tensor import RawTensor
from energy_data.sources.tar_alone import Decoders, Place, read_alone, read_plain
from energy_data.sources.tar_headers import BLOCK, PAX, Bools, are_idle, parse_headers
from energy_data.storage.files import File

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_Part = tuple[int, str, int, int]  # row, name of the file, begin and end of its payload

_WHOLE = 16384  # bytes; samples up to this size are read in one piece, then copied out of it
_WINDOW = 2048  # bytes of larger ones that are read to find their headers
_FEW = 32  # samples below which numpy does not pay
# Mean bytes of samples that are read faster each by itself; the compiled part leaves those above
# the second alone (WHOLE in `_tar_plain.c`).
_LARGE = 16384, 65536
_GAP = 8192  # bytes between two samples that are cheaper to read than to skip

_ROW, _AT, _END, _STOP, _SHIFT = range(5)  # columns of the table of a round
_BLOCK_BITS = 9


class Origin(NamedTuple):
    """What the samples of one dataset have in common."""

    decoders: Decoders
    subflavors: dict[str, Any]


class Spans:
    """Where the samples of a block are, file by file in order of offset."""

    def __init__(self) -> None:
        self.files: list[File] = []
        self.fds: list[int] = []  # [files] descriptors
        self.file_rows: list[int] = []  # [files] first row of each
        self.begins: list[int] = []  # [rows] offset of the sample's first header
        self.ends: list[int] = []  # [rows] offset behind the sample
        self.sources: list[tuple[SampleSource]] = []  # [rows]
        self.origins: list[Origin] = []  # [rows]

    def columns(self) -> tuple[list[int], list[int], list[int], list[int], list[Any], list[Any]]:
        """Return all columns as the compiled part takes them: descriptors in place of files."""
        return self.fds, self.file_rows, self.begins, self.ends, self.sources, self.origins

    def runs(self) -> Iterator[tuple[File, slice]]:
        """Yield each file with its rows."""
        bounds = pairwise([*self.file_rows, len(self.begins)])
        return zip(self.files, starmap(slice, bounds), strict=True)

    def only(self, rows: Sequence[int]) -> Spans:
        """Return some of the rows, in order."""
        part = Spans()
        for file, run in self.runs():
            chosen = rows[bisect_left(rows, run.start) : bisect_left(rows, run.stop)]
            if chosen:
                part.files.append(file)
                part.fds.append(file.fd)
                part.file_rows.append(len(part.begins))
            for row in chosen:
                part.begins.append(self.begins[row])
                part.ends.append(self.ends[row])
                part.sources.append(self.sources[row])
                part.origins.append(self.origins[row])
        return part

    def place(self, row: int) -> Place:
        """Return the place of a row by itself."""
        file = self.files[bisect_right(self.file_rows, row) - 1]
        return Place(file, self.begins[row], self.ends[row], self.sources[row])


def read_all(spans: Spans, num_bytes: int) -> list[Sample | SampleError]:
    """Return the samples, of `num_bytes` in all, in the way that is quickest; in order of rows."""
    count = len(spans.ends)
    if num_bytes <= count * _LARGE[1]:
        if compiled.TAR is not None:
            return _read_compiled(spans, compiled.TAR.read_plain)
        if count < _FEW or num_bytes > count * _LARGE[0]:
            return _read_each(spans)
    return SampleReader(spans).read()


def _read_compiled(spans: Spans, read_plain: Callable[..., int]) -> list[Sample | SampleError]:
    found: list[Any] = []
    if read_plain(found, *spans.columns(), decode_text):
        left = [row for row, sample in enumerate(found) if sample is None]
        large = [row for row in left if spans.ends[row] - spans.begins[row] > _LARGE[1]]
        for row, sample in zip(large, SampleReader(spans.only(large)).read(), strict=True):
            found[row] = sample
        for row in left:
            found[row] = found[row] or read_alone(spans.place(row), *spans.origins[row])
    return found


def _read_each(spans: Spans) -> list[Sample | SampleError]:
    """Return the samples, each read in one piece: quicker for few, or large.

    Of about one to four times `_WHOLE`.
    """
    begins, ends, sources, origins = spans.begins, spans.ends, spans.sources, spans.origins
    found: list[Sample | SampleError] = []
    for file, rows in spans.runs():
        for row in range(rows.start, rows.stop):
            begin = begins[row]
            sample = read_plain(file, begin, ends[row] - begin, sources[row], *origins[row])
            found.append(sample or read_alone(spans.place(row), *origins[row]))
    return found


class SampleReader:
    """Reads one block of samples."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._ends = np.array(spans.ends)
        self._file_rows = np.array(spans.file_rows)
        self._samples: list[Sample | SampleError | None] = [None] * len(spans.sources)
        self._passed_over = False
        self._odd: set[int] = set()  # rows for `_read_alone`

    def read(self) -> list[Sample | SampleError]:
        """Return the samples in the order of rows."""
        rows, at, window = np.arange(len(self._samples)), np.array(self._spans.begins), _WINDOW
        while rows.size:
            rows, at = self._round(rows, at, window)
            window *= 2  # a sample of very many parts still ends soon
        if self._passed_over:
            self._odd.update(row for row, one in enumerate(self._samples) if one is None)
        for row in sorted(self._odd):
            self._samples[row] = read_alone(self._spans.place(row), *self._spans.origins[row])
        return cast("list[Sample | SampleError]", self._samples)

    def _round(self, rows: Int64s, at: Int64s, window: int) -> tuple[Int64s, Int64s]:
        """Read and take apart what follows `at`; return the rows that have more, and where.

        at: int64 [rows], file offset of each row's next header.
        """
        ends = self._ends[rows]
        stops = np.where(ends - at <= _WHOLE, ends, np.minimum(ends, at + window))
        data, shift = self._load(rows, at, stops)  # shift: place in data - place in file
        table = np.array([rows, at + shift, ends + shift, stops + shift, shift])
        left = []
        while table.shape[1]:
            table = self._pass(data, table)
            going = table[_AT] < table[_END]
            if not going.any():
                break
            table = table[:, going]
            near = table[_AT] < table[_STOP]
            left.append(table[:, ~near])
            table = table[:, near]
        if not left:
            return rows[:0], at[:0]
        more = np.concatenate(left, axis=1)
        more = more[:, more[_ROW].argsort()]
        return more[_ROW], more[_AT] - more[_SHIFT]

    def _load(self, rows: Int64s, at: Int64s, stops: Int64s) -> tuple[Bytes, Int64s]:
        """Read from `at` to `stops` of every row; return the bytes, and where they went.

        Rows that are neighbours in their file, or nearly, are read together.
        """
        files = self._files_of(rows)
        new = np.ones(len(rows), np.bool_)
        new[1:] = (at[1:] > stops[:-1] + _GAP) | (files[1:] != files[:-1])
        firsts = new.nonzero()[0]
        lasts = np.empty_like(firsts)
        lasts[:-1], lasts[-1] = firsts[1:] - 1, len(rows) - 1
        begins, lengths = at[firsts], stops[lasts] - at[firsts]
        places = lengths.cumsum() - lengths
        data = np.empty(int(lengths.sum()), np.uint8)
        view = data.data
        ends = places + lengths
        runs = list(zip(places.tolist(), ends.tolist(), begins.tolist(), strict=True))
        bounds = files[firsts].searchsorted(np.arange(len(self._spans.files) + 1)).tolist()
        for file, (first, end) in zip(self._spans.files, pairwise(bounds), strict=True):
            if first < end:
                file.read_runs(view, runs[first:end])
        return data, np.repeat(places - begins, lasts - firsts + 1)

    def _pass(self, data: Bytes, table: Int64s) -> Int64s:
        """Parse the headers at the rows' places and take the parts they head; go behind them."""
        headers = parse_headers(data.reshape(-1, BLOCK)[table[_AT] >> _BLOCK_BITS])
        begins = table[_AT] + BLOCK
        ends = begins + headers.sizes
        after = (ends + (BLOCK - 1)) & -BLOCK
        plain = headers.plain & (after <= table[_END])
        files = (headers.kinds == ord("0")) | (headers.kinds == 0)
        if not files.all():
            pax = plain & (headers.kinds == PAX) & (after <= table[_STOP]) & (after < table[_END])
            plain &= files | self._idle(data, begins, ends, pax)
        names = headers.names
        if not plain.all():
            self._odd.update(table[_ROW][~plain].tolist())
            names = [name for name, good in zip(names, plain.tolist(), strict=True) if good]
            table, begins, ends = table[:, plain], begins[plain], ends[plain]
            after, files = after[plain], files[plain]
        near = files & (ends <= table[_STOP])
        parts = list(zip(table[_ROW].tolist(), names, begins.tolist(), ends.tolist(), strict=True))
        self._take(data.data, parts if near.all() else compress(parts, near.tolist()))
        if not near.all():
            far = files & ~near
            self._take_far(compress(parts, far.tolist()), table[:, far])
        table[_AT] = after
        return table

    def _idle(self, data: Bytes, begins: Int64s, ends: Int64s, pax: Bools) -> Bools:
        """Return which of the rows with pax records can pass over them."""
        for n in pax.nonzero()[0].tolist():
            pax[n] = are_idle(data[begins[n] : ends[n]].tobytes())
        self._passed_over = True  # perhaps all there was in a sample
        return pax

    def _take(self, data: Buffer, parts: Iterable[_Part]) -> None:
        """Decode parts that are in `data` into their samples."""
        samples, sources, origins = self._samples, self._spans.sources, self._spans.origins
        for row, name, begin, end in parts:
            key, _, extension = name.partition(".")
            decoders, subflavors = origins[row]
            decode = decoders.known.get(extension) or decoders.find_sane(extension)
            sample: Any = samples[row]
            again = sample is not None and (extension in sample or sample["__key__"] != key)
            if again or not (key and decode):
                self._odd.add(row)
                continue
            try:
                if decode is decode_text:
                    value = str(data[begin:end], "utf-8")
                else:
                    value = decode(data[begin:end])
            except Exception:  # noqa: BLE001 - read again alone, which says what is wrong
                self._odd.add(row)
                continue
            if sample is None:
                samples[row] = {
                    "__key__": key,
                    "__subflavors__": subflavors,
                    "__sources__": sources[row],
                    extension: value,
                }
            else:
                sample[extension] = value

    def _take_far(self, parts: Iterable[_Part], table: Int64s) -> None:
        """Decode parts that are not in memory: each is read into memory that it keeps."""
        files, origins = self._spans.files, self._spans.origins
        places = zip(self._files_of(table[_ROW]).tolist(), table[_SHIFT].tolist(), strict=True)
        for (row, name, begin, end), (number, shift) in zip(parts, places, strict=True):
            size = end - begin
            data: Buffer
            decode = origins[row].decoders.find_sane(name.partition(".")[2])
            if decode is skip_part:
                data, size = b"", 0
            elif decode is decode_npy or isinstance(decode, RawTensor):
                data = memoryview(bytearray(size))
                files[number].read_into(data, begin - shift)
            else:
                data = files[number].read(begin - shift, size)
            self._take(data, ((row, name, 0, size),))

    def _files_of(self, rows: Int64s) -> Int64s:
        """Return the number of each row's file."""
        return self._file_rows.searchsorted(rows, side="right") - 1
