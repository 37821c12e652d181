"""Compressed JSONL files for the tests, in frames of given texts."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import zstandard

SUFFIXES = (".zst", ".gz")


def frame(suffix: str, text: bytes) -> bytes:
    """Return one frame, as other programs write it."""
    if suffix == ".gz":
        return gzip.compress(text, compresslevel=1, mtime=0)
    return zstandard.ZstdCompressor(write_checksum=True).compress(text)


def write_frames(path: Path, texts: Iterable[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(frame(path.suffix, text) for text in texts))
    return path


def lines_of(numbers: Sequence[int]) -> list[bytes]:
    return [json.dumps({"n": n}).encode() + b"\n" for n in numbers]


def write_numbers(path: Path, numbers: Sequence[int], size: int = 7) -> Path:
    """Write lines in frames of `size` lines, but for some bytes, so that lines go over the ends."""
    text = b"".join(lines_of(numbers))
    step = size * 9 + 4
    return write_frames(path, [text[at : at + step] for at in range(0, len(text), step)])


def block_of_bgzip(text: bytes) -> bytes:
    """Return a block as bgzip writes it: a member that has its size in an extra field."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    data = deflate.compress(text) + deflate.flush()
    size = 12 + 6 + len(data) + 8
    head = struct.pack("<4BI2BH", 31, 139, 8, 4, 0, 0, 255, 6)
    extra = struct.pack("<2BHH", 66, 67, 2, size - 1)
    return head + extra + data + struct.pack("<II", zlib.crc32(text), len(text))
