"""Frames: the parts of a zstd or gzip file that can be decompressed by themselves.

    data, end = read_frame(ZSTD, file, 4096)  # the frame at byte 4096, and where the next begins

A file of zstd is a sequence of frames, with or without a table of them at its end (the "seekable
format"). A file of gzip is a sequence of members, as bgzip writes them.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

from energy_data.data.files.local import LocalFile
from energy_data.errors import MissingExtraError, StructureError

FRAME_BITS = 26
LARGEST_FRAME = 1 << FRAME_BITS  # bytes that a frame may have to be read in place

_PIECE = 1 << 20  # bytes that are decompressed at once
_READ = 1 << 17  # compressed bytes that are read at once
_SKIPPABLE, _SEEKABLE = 0x184D2A50, 0x8F92EAB1  # magic numbers of zstd
_LONGEST_HEADER = 18  # bytes of a frame
_LARGEST_WINDOW = 1 << 31  # bytes of text that zstd may refer back to

Pieces = Generator[bytes, None, int]
"""Yields the text of a frame piece by piece, and returns where the frame ends."""


class DamagedFrameError(StructureError):
    """A frame cannot be decompressed; other frames of its file may be."""


class LargeFrameError(StructureError):
    """A frame is too large to be read in place."""


class Compression(NamedTuple):
    """A way to compress files in frames."""

    suffix: str
    pieces: Callable[[LocalFile, int, int], Pieces]  # of the frame at a byte; largest window
    compress: Callable[[bytes], bytes]  # one frame
    # What comes after the last frame; called with the compressed and the full size of each.
    table: Callable[[Sequence[tuple[int, int]]], bytes]
    magic: bytes  # how each frame with text begins


def read_frame(compression: Compression, file: LocalFile, at: int) -> tuple[bytes, int]:
    """Return the text of the frame at byte `at`, and where the frame ends.

    Raises DamagedFrameError, and LargeFrameError before much memory is used.
    """
    found, size = list[bytes](), 0
    pieces = compression.pieces(file, at, LARGEST_FRAME)
    while True:
        try:
            found.append(next(pieces))
        except StopIteration as done:
            return b"".join(found), done.value
        size += len(found[-1])
        if size > LARGEST_FRAME:
            raise _too_large(file, at)


def texts(compression: Compression, file: LocalFile) -> Iterator[bytes]:
    """Yield the text of a file piece by piece, whatever the size of its frames."""
    at = 0
    while at < file.size:
        at = yield from compression.pieces(file, at, _LARGEST_WINDOW)


def _too_large(file: LocalFile, at: int) -> LargeFrameError:
    return LargeFrameError(
        f"it is compressed in a frame of more than {LARGEST_FRAME >> 20} MiB, and samples in it "
        f"cannot be read at random. Run `energy-data prepare --reframe`, which writes the file "
        "again in small frames; or decompress it.",
        shard=file.path,
        offset=at,
    )


def _damaged(file: LocalFile, at: int, problem: object) -> DamagedFrameError:
    problem = f"the frame that begins there cannot be decompressed: {problem}"
    return DamagedFrameError(f"{problem}. Restore the file.", shard=file.path, offset=at)


def zstandard() -> Any:
    """Return the module. MissingExtraError if it is not installed."""
    try:
        import zstandard  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingExtraError("reading files that are compressed by zstd", "zstd") from error
    return zstandard


class _ZstdFrame(NamedTuple):
    """Where a frame of zstd ends, and what its header says."""

    end: int
    has_text: bool
    size: int | None  # of the text
    window: int


def _zstd_frame(file: LocalFile, at: int) -> _ZstdFrame:
    """Return a frame by the headers of its blocks; decompresses nothing."""
    zstd = zstandard()
    head = file.read(at, min(_LONGEST_HEADER, file.size - at))
    if len(head) >= 8 and int.from_bytes(head[:4], "little") & ~15 == _SKIPPABLE:
        end = at + 8 + int.from_bytes(head[4:8], "little")
        found = _ZstdFrame(end, has_text=False, size=0, window=0)
    else:
        try:
            facts = zstd.get_frame_parameters(head)
            end = at + zstd.frame_header_size(head)
        except zstd.ZstdError as error:
            raise _damaged(file, at, error) from error
        is_last = False
        while not is_last and end + 3 <= file.size:
            block = int.from_bytes(file.read(end, 3), "little")
            is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
            end += 3 + (1 if kind == 1 else size)  # 1: a byte that is repeated
        end += 4 * facts.has_checksum if is_last else 1 + file.size
        is_known = facts.content_size < zstd.CONTENTSIZE_UNKNOWN
        declared = facts.content_size if is_known else None
        found = _ZstdFrame(end, has_text=True, size=declared, window=facts.window_size)
    if found.end > file.size:
        raise _damaged(file, at, f"the file ends in it, at byte {file.size}")
    return found


class _Range:
    """A range of a file as a stream."""

    def __init__(self, file: LocalFile, at: int, end: int) -> None:
        self._file, self._at, self._end = file, at, end

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes."""
        data = self._file.read(self._at, min(size, self._end - self._at))
        self._at += len(data)
        return data


def _zstd_pieces(file: LocalFile, at: int, largest_window: int) -> Pieces:
    zstd, frame = zstandard(), _zstd_frame(file, at)
    if not frame.has_text:
        return frame.end
    if frame.window > largest_window:
        raise _too_large(file, at)
    decompressor = zstd.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    size = 0
    try:
        if frame.size is not None and frame.size <= _PIECE:  # faster at once
            yield decompressor.decompress(file.read(at, frame.end - at))
            return frame.end
        stream = decompressor.stream_reader(_Range(file, at, frame.end))
        while piece := stream.read(_PIECE):
            size += len(piece)
            yield piece
    except zstd.ZstdError as error:
        raise _damaged(file, at, error) from error
    if frame.size not in (None, size):
        raise _damaged(file, at, f"it has {size} bytes of text, not {frame.size}")
    return frame.end


def _gzip_pieces(file: LocalFile, at: int, _largest_window: int) -> Pieces:
    stream, data, begin = zlib.decompressobj(16 + zlib.MAX_WBITS), b"", at
    while not stream.eof:
        if not data:
            data = file.read(at, min(_READ, file.size - at))
            at += len(data)
        at_end = not data
        try:
            piece = stream.decompress(data, _PIECE)
        except zlib.error as error:
            raise _damaged(file, begin, error) from error
        data = stream.unconsumed_tail
        if piece:
            yield piece
        elif at_end and not stream.eof:
            raise _damaged(file, begin, f"the file ends in it, at byte {file.size}")
    return at - len(stream.unused_data)


def _zstd_compress(text: bytes) -> bytes:
    data: bytes = zstandard().ZstdCompressor(write_checksum=True).compress(text)
    return data


def _zstd_table(sizes: Sequence[tuple[int, int]]) -> bytes:
    """Return the table of frames of the seekable format, in a frame that readers skip."""
    rows = b"".join(struct.pack("<II", *one) for one in sizes)
    footer = struct.pack("<IBI", len(sizes), 0, _SEEKABLE)
    return struct.pack("<II", _SKIPPABLE | 14, len(rows) + len(footer)) + rows + footer


ZSTD = Compression(".zst", _zstd_pieces, _zstd_compress, _zstd_table, b"\x28\xb5\x2f\xfd")
GZIP = Compression(
    ".gz",
    _gzip_pieces,
    lambda text: gzip.compress(text, compresslevel=6, mtime=0),
    lambda _: b"",
    b"\x1f\x8b",
)
