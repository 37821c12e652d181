"""JSONL files: one JSON object per line, with random access through an index next to the file.

    source = open_source("/data/notes.jsonl")
    source.read(np.arange(256))  # -> [{"__key__": "0", "json": {...}}, ...]

The index, `notes.jsonl.idx`, has Energon's format: a sample reaches to the next one, over the empty
lines between them; empty lines at the beginning of the file belong to the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energy_data.core.lazy import cached_property
from energy_data.core.sample import Sample, SampleSource
from energy_data.data.decode.parts import decode_json
from energy_data.data.files.local import LocalFile, Version, keep_open, open_file, version_of
from energy_data.data.files.offsets import (
    BLOCK_ROWS,
    SUFFIX,
    IndexedFile,
    Offsets,
    ensure_index,
    num_samples,
    read_block,
    write_index,
)
from energy_data.data.files.stores import DatasetFileStore
from energy_data.data.shards import some_bytes
from energy_data.data.source import OpenOptions, Source, reopen
from energy_data.errors import SampleError, SpecError, StructureError

Int64s = npt.NDArray[np.int64]

_CHUNK = 1 << 22  # bytes that are scanned at once
_NEWLINE, _OPEN, _CLOSE, _RETURN = b"\n{}\r"
_GAP = 8192  # bytes between two lines that are cheaper to read than to skip
_MOST = 1 << 26  # bytes read at once
_ADVICE = "Run `energy-data prepare` on the file."


class JsonlSource(Source):
    """Samples of a JSONL file: one part, `json`; their keys are their numbers.

    The file has one split part, "train". It is indexed now if it has no index, or an older one.
    Raises SpecError if the file or the part does not exist, StructureError for a line that is not
    a JSON object.
    """

    def __init__(self, path: str, options: OpenOptions) -> None:
        options.check_unprepared(path)
        self.path, self.options, self._lines = path, options, _Lines(path)
        self._first, self._length = options.range_of(len(self._lines), path)
        self._name = Path(path).name

    def __len__(self) -> int:
        return self._length

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits that do not depend on the path, and change with the data.

        The data is the number of samples, the size of the file and 4 KiB at 32 places. So each
        change of a file of up to 128 KiB is noticed, and a larger one that is written again with
        other samples; a change of single bytes in it may not be. Costs 32 small reads.
        """
        digest = hashlib.blake2b(self._lines.some_bytes(), digest_size=8)
        digest.update(repr((len(self._lines), self._first, self._length)).encode())
        return digest.hexdigest()

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return reopen, (type(self), self.path, self.options, self.fingerprint)

    def row_of(self, index: int) -> int:
        """Return the number of a sample in the file."""
        return index + self._first

    def read(self, indices: Int64s) -> list[Sample | SampleError]:
        """Return the samples of `indices`, in that order; a bad sample is a SampleError."""
        wanted = np.asarray(indices, np.int64)
        order = wanted.argsort(kind="stable")
        if len(wanted) and not 0 <= wanted[order[0]] <= wanted[order[-1]] < self._length:
            raise IndexError(f"one of {wanted.tolist()} of {self._length} samples")
        rows = wanted[order] + self._first
        begins, ends = self._lines.locate(rows)
        samples: list[Sample | SampleError] = [{}] * len(wanted)
        for first, end in _runs(begins, ends):
            shift = begins[first]
            data = memoryview(self._lines.read(int(rows[first]), shift, ends[end - 1]))
            for n in range(first, end):
                line = data[begins[n] - shift : ends[n] - shift]
                samples[int(order[n])] = self._sample(int(rows[n]), line, begins[n])
        return samples

    def _sample(self, row: int, line: memoryview, offset: int) -> Sample | SampleError:
        try:
            value = decode_json(line[:-1] if line[-1] == _NEWLINE else line)
        except (ValueError, RecursionError) as error:
            return SampleError(
                f"its line cannot be decoded as JSON: {error}. Fix the line.",
                dataset=self.path,
                shard=self._name,
                key=str(row),
                index=row,
                offset=offset,
            )
        return {
            "__key__": str(row),
            "__subflavors__": self.options.subflavors,
            "__sources__": (SampleSource(self.path, self._name, row),),
            "json": value,
        }


class JsonlFileStore(DatasetFileStore):
    """The samples of a JSONL file by key: `12.json` is line 12, from 0, of those with samples.

    A lookup costs one read. Raises SpecError, when it is made, if there is no such file.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._lines = _Lines(self.path)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._lines)

    def __getitem__(self, key: str) -> tuple[bytes, SampleSource]:
        """Return the bytes of a sample. KeyError if there is none."""
        number, _, extension = key.partition(".")
        if not (extension == "json" and number.isdecimal() and int(number) < len(self)):
            raise KeyError(
                f"{self.path}: there is no {key!r}, only 0.json to {len(self) - 1}.json."
            )
        (begin,), (end,) = self._lines.locate(np.array([int(number)]))
        source = SampleSource(self.path, Path(self.path).name, key)
        return self._lines.read(int(number), begin, end), source


class _Lines:
    """The lines of a file that hold samples. Creating it indexes the file if that is needed."""

    def __init__(self, path: str) -> None:
        if not Path(path).is_file():
            raise SpecError(f"{path}: there is no such file. Name a .jsonl file.")
        self.path = path
        index = ensure_index(path, lambda end, size: end == size, scan_lines)
        self._count = num_samples(index)
        self._facts = path, index, self._count, version_of(path), version_of(index)

    def __len__(self) -> int:
        return self._count

    def locate(self, rows: Int64s) -> tuple[list[int], list[int]]:
        """Return where lines begin and end; `rows` is sorted. StructureError for a bad index."""
        (begins, ends), size = np.empty((2, len(rows)), np.uint64), 0
        cuts = np.flatnonzero(np.diff(rows // BLOCK_ROWS)) + 1
        for first, end in pairwise([0, *cuts.tolist(), len(rows)] if len(rows) else []):
            block = self._open(int(rows[first]))
            numbers = rows[first:end] - block.first
            begins[first:end], ends[first:end] = block.offsets[numbers], block.offsets[numbers + 1]
            size = block.file.size
        wrong = np.flatnonzero((begins >= ends) | (ends > size))
        if len(wrong):
            at, stop = int(begins[wrong[0]]), int(ends[wrong[0]])
            problem = f"its index has a line from byte {at} to {stop}, which is invalid"
            raise StructureError(f"{problem}. {_ADVICE}", dataset=self.path, offset=at)
        return begins.tolist(), ends.tolist()

    def read(self, row: int, begin: int, end: int) -> bytes:
        """Return some bytes of the file, which begin in line `row`."""
        try:
            return self._open(row).file.read(begin, end - begin)
        except StructureError as error:
            error.dataset = self.path
            raise

    def some_bytes(self) -> bytes:
        """Return what the fingerprint reads of the file."""
        try:
            return some_bytes(self._open(0).file)
        except StructureError as error:
            error.dataset = self.path
            raise

    def _open(self, row: int) -> IndexedFile:
        """Return the file with the block of its index that has a line."""
        opened: IndexedFile = keep_open(_open_lines, *self._facts, row // BLOCK_ROWS)
        return opened


def _open_lines(
    path: str, index: str, count: int, version: Version, _of_index: Version, block: int
) -> IndexedFile:
    file: LocalFile = keep_open(open_file, path, version)  # one for all blocks
    lines, end = read_block(index, file, count, block, _ADVICE)
    if end != lines.file.size or (block == 0 and lines.offsets[0] != 0):
        problem = f"its index is of a file of {end} bytes, but it has {lines.file.size}"
        raise StructureError(f"{problem}. {_ADVICE}", shard=path)
    return lines


def _runs(begins: list[int], ends: list[int]) -> list[tuple[int, int]]:
    """Return the rows [first, end) that are read together: neighbours in the file."""
    bounds, start = [0], 0
    for n in range(1, len(begins)):
        if begins[n] > ends[n - 1] + _GAP or ends[n] - begins[start] > _MOST:
            bounds.append(n)
            start = n
    return list(pairwise([*bounds, len(begins)])) if begins else []


def prepare_jsonl(path: str) -> int:
    """Write the index next to a JSONL file; return the number of samples."""
    offsets = scan_lines(open_file(path))
    write_index(path, offsets, [path + SUFFIX])
    return len(offsets) - 1


def scan_lines(file: LocalFile) -> Offsets:
    """Return the index of a JSONL file, uint64 [samples + 1].

    Raises StructureError if there are no samples, or for a line that is no JSON object by its first
    and last character; the text between them is not checked.
    """
    starts = [found for data, at, line in _pieces(file) for found in _samples(data, at, line, file)]
    offsets = np.concatenate(starts) if starts else np.empty(0, np.int64)
    if not len(offsets):
        raise StructureError("it has no samples. Write one JSON object per line.", shard=file.path)
    offsets[0] = 0
    return np.append(offsets, file.size).astype(np.uint64)


def _pieces(file: LocalFile) -> Iterator[tuple[bytes, int, int]]:
    """Yield complete lines, some MiB at a time, with their offset and the number of the first."""
    at, line = 0, 1
    while at < file.size:
        size = min(_CHUNK, file.size - at)
        data = file.read(at, size)
        while at + size < file.size and b"\n" not in data:  # one long line
            size = min(2 * size, file.size - at)
            data = file.read(at, size)
        if at + size < file.size:
            data = data[: data.rfind(b"\n") + 1]
        yield data, at, line
        at, line = at + len(data), line + data.count(b"\n")


def _samples(data: bytes, at: int, line: int, file: LocalFile) -> Iterator[Int64s]:
    """Yield the offsets of the lines that are samples; StructureError for other ones."""
    values = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(values == _NEWLINE)
    if not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    starts = np.concatenate(([0], ends[:-1] + 1))
    lasts = np.maximum(ends - 1, 0)
    lasts -= (values[lasts] == _RETURN) & (lasts > 0)
    good = (values[starts] == _OPEN) & (values[lasts] == _CLOSE) & (ends > starts)
    for odd in np.flatnonzero(~good).tolist():
        text = data[starts[odd] : ends[odd]].strip()
        if text and not (text.startswith(b"{") and text.endswith(b"}")):
            shown = text[:40].decode("utf-8", "backslashreplace")
            raise StructureError(
                f"line {line + odd} is no JSON object: it begins {shown!r}. Write one per line.",
                shard=file.path,
                offset=at + int(starts[odd]),
            )
        good[odd] = bool(text)
    yield starts[good] + at
