"""Compressed JSONL files: `.jsonl.zst` and `.jsonl.gz`, read in place frame by frame.

    source = open_source("/data/notes.jsonl.zst")
    source.read(np.arange(256))  # -> [{"__key__": "0", "json": {...}}, ...]

The index, `notes.jsonl.zst.idx`, is one of `data/files/offsets.py`. An offset is where the frame
with the first byte of a line begins, and, in its lowest bits, which byte of the frame's text that
is. A line may go on in the next frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from energy_data.core.arrays import Int64s
from energy_data.core.lazy import cached_property
from energy_data.core.sample import Sample
from energy_data.data.files.local import LocalFile, Version, open_file
from energy_data.data.files.offsets import IndexedFile, Offsets, read_block
from energy_data.data.files.recent import RECENT
from energy_data.data.frames.compression import (
    FRAME_BITS,
    GZIP,
    LARGEST_FRAME,
    ZSTD,
    Compression,
    DamagedFrameError,
    read_frame,
)
from energy_data.data.frames.rewrite import reframe
from energy_data.data.jsonl import ADVICE, JsonlFileStore, JsonlSource, LineError, find_samples
from energy_data.data.records import locate
from energy_data.data.shards import Scan, ShardKind
from energy_data.data.source import Unit
from energy_data.errors import SampleError, StructureError
from energy_data.remote.cache_space import Range

_PROBES = 64  # frames checked if an index is older than its file
_LARGEST_FILE = 1 << 64 - FRAME_BITS


def _scan(compression: Compression, file: LocalFile) -> Scan:
    """Return the index of a file. Holds one frame, or a line that is longer.

    Raises StructureError for damage, with the frame in which it is.
    """
    if file.size >= _LARGEST_FILE:
        problem = f"has more than {_LARGEST_FILE >> 30} GiB. Split it into several files."
        raise StructureError(problem, shard=file.path)
    frames = _Frames(compression, file)
    try:
        samples = find_samples(frames.texts(), file.path)
    except LineError as error:
        error.offset = int(frames.offsets(np.array([error.offset]))[0]) >> FRAME_BITS
        raise
    end = np.uint64(file.size << FRAME_BITS)
    return Scan(np.append(frames.offsets(samples), end), [], ["json"])


class _Frames:
    """The frames of a file, one after another, and where each begins."""

    def __init__(self, compression: Compression, file: LocalFile) -> None:
        self._compression, self._file = compression, file
        self.places: list[tuple[int, int]] = []  # of each, in the text and in the file

    def texts(self) -> Iterator[bytes]:
        """Yield the text of each frame."""
        at, begin, line = 0, 0, 0
        while at < self._file.size:
            text, end = read_frame(self._compression, self._file, at)
            self.places.append((begin, at))
            at, begin = end, begin + len(text)
            newline = text.rfind(b"\n") + 1
            line = len(text) - newline if newline else line + len(text)
            if line > LARGEST_FRAME:
                problem = f"a line has more than {LARGEST_FRAME >> 20} MiB"
                raise LineError(
                    f"{problem}. Write one JSON object per line.",
                    shard=self._file.path,
                    offset=begin - line,
                )
            yield text

    def offsets(self, places: Int64s) -> Offsets:
        """Return the offsets of the index for places in the text."""
        begins, files = np.array(self.places or [(0, 0)], np.uint64).T
        frames = np.searchsorted(begins, places.astype(np.uint64), side="right") - 1
        found: Offsets = files[frames] << np.uint64(FRAME_BITS)
        found |= places.astype(np.uint64) - begins[frames]
        return found


def _open_block(
    compression: Compression,
    path: str,
    index: str,
    count: int,
    version: Version,
    _of_index: Version,
    block: int,
) -> IndexedFile:
    """Return a file with a block of its index. StructureError if the index does not fit it."""
    found, end = read_block(index, open_file(path, version), count, block, ADVICE)
    file = found.file
    if end != file.size << FRAME_BITS:
        problem = f"its index is of a file of {end >> FRAME_BITS} bytes, but it has {file.size}"
        raise StructureError(f"{problem}. {ADVICE}", shard=path)
    if Path(index).stat().st_mtime_ns < file.mtime_ns:  # as copying may leave it
        frames = np.unique(found.offsets[:-1] >> np.uint64(FRAME_BITS))
        for at in frames[:: max(1, len(frames) // _PROBES)].tolist():
            begin = file.read(at, min(len(compression.magic), file.size - at))
            if begin != compression.magic:
                problem = "its index is older than the file and does not fit"
                raise StructureError(f"{problem}. {ADVICE}", shard=path, offset=at)
    return found


def _fits(end: int, size: int) -> bool:
    return end == size << FRAME_BITS


def _kind(compression: Compression) -> ShardKind:
    return ShardKind(
        suffix=f".jsonl{compression.suffix}",
        packed=(),
        scan=partial(_scan, compression),
        fits=_fits,
        open_block=partial(_open_block, compression),
        reframe=partial(reframe, compression),
    )


JSONL_ZSTD, JSONL_GZIP = _kind(ZSTD), _kind(GZIP)


class _FramedLines:
    """What the sources and stores of compressed files have in common."""

    compression: ClassVar[Compression]

    def text(self, file: LocalFile, begin: int, end: int) -> memoryview:
        """Return the line between two offsets of an index.

        Raises DamagedFrameError, and StructureError for an index that is wrong.
        """
        (at, first), (last, rest) = divmod(begin, LARGEST_FRAME), divmod(end, LARGEST_FRAME)
        parts, size = list[memoryview](), 0
        while at < last or (at == last and rest):
            data, following = self._frame(file, at)
            part = memoryview(data)[first : rest if at == last else None]
            RECENT.use(_key(file, at), len(part), len(data))
            parts.append(part)
            size += len(part)
            fits = len(data) >= rest if at == last else following <= last
            if not fits or not size or size > 2 * LARGEST_FRAME:
                problem = "its index does not fit its frames"
                raise StructureError(f"{problem}. {ADVICE}", shard=file.path, offset=at)
            if at == last:
                break
            at, first = following, 0
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def _frame(self, file: LocalFile, at: int) -> tuple[bytes, int]:
        def make() -> tuple[tuple[bytes, int], int]:
            found = read_frame(self.compression, file, at)
            return found, len(found[0])

        return RECENT.get(_key(file, at), make)


def _key(file: LocalFile, at: int) -> tuple[str, int, int, int]:
    return file.path, file.size, file.mtime_ns, at


class FramedJsonlSource(_FramedLines, JsonlSource):
    """Samples of compressed JSONL files: as `JsonlSource`, but neighbours share frames."""

    @cached_property
    def _run_length(self) -> int | None:
        number = next(number for number, count in enumerate(self.part.counts) if count)
        frames = self._open(number).offsets[:-1] >> np.uint64(FRAME_BITS)
        most = int(np.unique(frames, return_counts=True)[1].max())
        return most if most > 1 else None

    @property
    def run_length(self) -> int | None:
        """The most lines of a frame, in the first block of the index of the first file."""
        return self._run_length

    def _ranges(self, number: int, rows: Int64s) -> Iterable[Range]:
        """Return the bytes of the frames that have some lines of a file."""
        path, (begins, ends) = self.part.paths(number)[0], self._bounds(number, rows)
        # Of all lines that begin and end in the same frames, the last one.
        spans = {
            (begin >> FRAME_BITS, end >> FRAME_BITS, end % LARGEST_FRAME > 0): row
            for row, begin, end in zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True)
        }
        for (start, stop, is_inside), row in spans.items():
            yield path, start, self._frame_after(number, row, stop) if is_inside else stop

    def _frame_after(self, number: int, row: int, frame: int) -> int:
        """Return where the next frame begins in which a line begins, or the file ends.

        row: A line that ends in `frame`.
        """
        while True:
            block = self._open(number, row)
            frames = block.offsets >> np.uint64(FRAME_BITS)
            if frames[-1] > frame:
                return int(frames[int(np.searchsorted(frames, frame, side="right"))])
            row = block.first + len(frames) - 1

    def costs(self, indices: Int64s, unit: Unit) -> Int64s | None:
        """Return None: the index does not have the size of the last line of a frame."""
        return None

    def _read_shard(self, number: int, rows: Int64s) -> Iterator[Sample | SampleError]:
        """Yield samples of a shard; `rows` is sorted."""
        file, begins, ends = locate(partial(self._open, number), rows, ADVICE, bits=FRAME_BITS)
        for row, begin, end in zip(rows.tolist(), begins, ends, strict=True):
            try:
                line = self.text(file, begin, end)
            except DamagedFrameError as error:
                yield self.bad_sample(error.problem, number, row, error.offset)
            else:
                yield self.sample(number, row, line, begin >> FRAME_BITS)


class FramedFileStore(_FramedLines, JsonlFileStore):
    """The samples of a compressed JSONL file by key, as in `JsonlFileStore`."""

    def _line(self, row: int) -> bytes:
        rows = np.array([row])
        file, (begin,), (end,) = locate(self._open, rows, ADVICE, bits=FRAME_BITS)
        return bytes(self.text(file, begin, end))


class ZstdJsonlSource(FramedJsonlSource):
    """Samples of `.jsonl.zst` files."""

    kind, compression = JSONL_ZSTD, ZSTD


class GzipJsonlSource(FramedJsonlSource):
    """Samples of `.jsonl.gz` files."""

    kind, compression = JSONL_GZIP, GZIP


class ZstdFileStore(FramedFileStore):
    """The samples of a `.jsonl.zst` file by key."""

    kind, compression = JSONL_ZSTD, ZSTD


class GzipFileStore(FramedFileStore):
    """The samples of a `.jsonl.gz` file by key."""

    kind, compression = JSONL_GZIP, GZIP
