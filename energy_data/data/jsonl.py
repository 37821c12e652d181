"""JSONL files: one JSON object per line, with random access through an index next to the file.

    source = open_source("/data/notes.jsonl")
    source.read(np.arange(256))  # -> [{"__key__": "0", "json": {...}}, ...]

The index, `notes.jsonl.idx`, has Energon's format: a sample reaches to the next one, over the empty
lines between them; empty lines at the beginning of the file belong to the first.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from energy_data.core.arrays import Int64s
from energy_data.core.lazy import cached_property
from energy_data.core.sample import Sample, SampleSource
from energy_data.data.decode.parts import decode_json
from energy_data.data.files.local import LocalFile, Version, open_file
from energy_data.data.files.offsets import IndexedFile, Offsets, read_block
from energy_data.data.files.stores import DatasetFileStore
from energy_data.data.part import find_plain, names_dataset, row_of_key
from energy_data.data.records import RecordSource, locate
from energy_data.data.shards import Scan, ShardKind, shard_opener, some_bytes
from energy_data.errors import SampleError, SpecError, StructureError

_CHUNK = 1 << 22  # bytes that are scanned at once
_NEWLINE, _OPEN, _CLOSE, _RETURN = b"\n{}\r"
_PROBES = 64  # lines checked if an index is older than its file
ADVICE = "Run `energy-data prepare` on the file, or with --tar-index-only on its prepared folder."


class LineError(StructureError):
    """A line is no JSON object; its offset is in the text of the file."""


def scan_lines(file: LocalFile) -> Offsets:
    """Return the index of a JSONL file, uint64 [samples + 1].

    Raises StructureError for a line that is no JSON object by its first and last character; the
    text between them is not checked.
    """
    return np.append(find_samples(_chunks(file), file.path), file.size).astype(np.uint64)


def _scan(file: LocalFile) -> Scan:
    return Scan(scan_lines(file), [], ["json"])


def _chunks(file: LocalFile) -> Iterator[bytes]:
    for at in range(0, file.size, _CHUNK):
        yield file.read(at, min(_CHUNK, file.size - at))


def find_samples(chunks: Iterable[bytes], path: str) -> Int64s:
    """Return where each sample of a text begins, int64 [samples].

    chunks: the text of the file at `path`. Raises LineError for what is no line of JSONL.
    """
    starts = [
        found for data, at, line in _pieces(chunks) for found in _samples(data, at, line, path)
    ]
    offsets = np.concatenate(starts) if starts else np.empty(0, np.int64)
    offsets[:1] = 0
    return offsets


def _pieces(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, int, int]]:
    """Yield complete lines, with the offset and the number of the first."""
    waiting, at, line = list[bytes](), 0, 1
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            data = b"".join([*waiting, chunk[:cut]])
            yield data, at, line
            at, line, waiting = at + len(data), line + data.count(b"\n"), []
        waiting.append(chunk[cut:])
    if rest := b"".join(waiting):
        yield rest, at, line


def _samples(data: bytes, at: int, line: int, path: str) -> Iterator[Int64s]:
    """Yield the offsets of the lines that are samples; LineError for other ones."""
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
            raise LineError(
                f"line {line + odd} is no JSON object: it begins {shown!r}. Write one per line.",
                shard=path,
                offset=at + int(starts[odd]),
            )
        good[odd] = bool(text)
    yield starts[good] + at


def _open_block(
    path: str, index: str, count: int, version: Version, _of_index: Version, block: int
) -> IndexedFile:
    """Return a file with a block of its index. StructureError if the index does not fit it."""
    lines, end = read_block(index, open_file(path, version), count, block, ADVICE)
    file, offsets = lines.file, lines.offsets
    if end != file.size or (block == 0 and offsets[0] != 0):
        raise _misfit(f"its index is of a file of {end} bytes, but it has {file.size}", file)
    if Path(index).stat().st_mtime_ns < file.mtime_ns:  # as copying may leave it
        rows = np.linspace(0, len(offsets) - 1, _PROBES).astype(np.int64)
        for begin in offsets[np.unique(rows)].tolist():
            if 0 < begin < end and file.read(begin - 1, 1) != b"\n":
                raise _misfit("its index is older than the file and does not fit", file, begin)
    return lines


def _misfit(problem: str, file: LocalFile, offset: int | None = None) -> StructureError:
    return StructureError(f"{problem}. {ADVICE}", shard=file.path, offset=offset)


JSONL = ShardKind(
    suffix=".jsonl",
    packed=(".jsonl.bz2", ".jsonl.xz"),
    scan=_scan,
    fits=operator.eq,
    open_block=_open_block,
)


class JsonlSource(RecordSource):
    """Samples of JSONL files: one part, `json`; the key of a sample is its number in its file."""

    kind = JSONL
    advice = ADVICE

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits that do not depend on the path, and change with the data.

        The data of one file is the number of samples, its size, and 4 KiB at 32 places. So each
        change of a file of up to 128 KiB is noticed, and a larger one that is written again with
        other samples; a change of single bytes in it may not be. Costs 32 small reads.
        """
        files = [number for number, count in enumerate(self.part.counts) if count]
        if len(files) > 1 or self._gaps or self.part.kept is not None:
            return super().fingerprint
        with names_dataset(self.path):
            digest = hashlib.blake2b(some_bytes(self._open(files[0]).file), digest_size=8)
        digest.update(repr((self._ends[-1], self._row, self._length)).encode())
        return digest.hexdigest()

    def sample(self, number: int, row: int, data: memoryview, offset: int) -> Sample | SampleError:
        """Return the object of a line."""
        try:
            value = decode_json(data[:-1] if data[-1] == _NEWLINE else data)
        except (ValueError, RecursionError) as error:
            problem = f"its line cannot be decoded as JSON: {error}. Fix the line."
            return self.bad_sample(problem, number, row, offset)
        sample = self.fields(number, row)
        sample["json"] = value
        return sample


class JsonlFileStore(DatasetFileStore):
    """The samples of a JSONL file by key: `12.json` is line 12, from 0, of those with samples.

    A lookup costs one read. Raises SpecError, when it is made, if there is no such file, or if
    there are several, whose samples have the same keys.
    """

    kind: ClassVar[ShardKind] = JSONL

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._part = part = find_plain(self.path, self.kind)
        if len(part.shards) > 1:
            raise SpecError(
                f"{path}: files are found by key, but the lines of each of its {len(part.shards)} "
                f"files are numbered from 0. Name one {self.kind.suffix} file."
            )
        self._open = partial(shard_opener(part), 0)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._part.num_samples

    def __getitem__(self, key: str) -> tuple[bytes, SampleSource]:
        """Return the bytes of a sample. KeyError if there is none."""
        row = row_of_key(key.removesuffix(".json"), len(self)) if key.endswith(".json") else None
        if row is None:
            raise KeyError(
                f"{self.path}: there is no {key!r}, only 0.json to {len(self) - 1}.json."
            )
        with names_dataset(self.path):
            return self._line(row), SampleSource(self.path, self._part.shards[0], key)

    def _line(self, row: int) -> bytes:
        """Return a line."""
        file, (begin,), (end,) = locate(self._open, np.array([row]), ADVICE)
        return file.read(begin, end - begin)
