"""Writes a compressed file again, as frames of complete lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from energy_data.data.files.local import LocalFile, atomic_file
from energy_data.data.frames.compression import LARGEST_FRAME, Compression, texts
from energy_data.data.shards import Progress
from energy_data.errors import StructureError

FRAME = 1 << 20  # bytes of text in a frame: about 1 ms to read a line, and nearly the best ratio


class _WatchedFile(LocalFile):
    """A file that reports how far it was read."""

    __slots__ = ("_progress",)

    def __init__(self, path: str, progress: Progress) -> None:
        super().__init__(path)
        self._progress = progress

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`."""
        self._progress(offset + size, self.size)
        return super().read(offset, size)


def reframe(compression: Compression, path: str, progress: Progress | None = None) -> None:
    """Write a file again, as frames of complete lines.

    The new file replaces the old one when it is complete: this needs as much disk space again, and
    a process that is killed leaves either the old or the new file. Holds one frame in memory.
    progress: called with the bytes that were read and those of the file.

    Raises StructureError for a damaged file, and for a line that is larger than a frame may be.
    """
    file = _WatchedFile(path, progress) if progress else LocalFile(path)
    sizes = list[tuple[int, int]]()
    with atomic_file(path, Path(path).stat().st_mode) as out:
        for text in _frames(texts(compression, file), path):
            data = compression.compress(text)
            sizes.append((len(data), len(text)))
            out.write(data)
        out.write(compression.table(sizes))


def _frames(pieces: Iterable[bytes], path: str) -> Iterator[bytes]:
    """Yield complete lines, `FRAME` bytes or one line that is longer."""
    waiting, line = b"", 1
    for piece in pieces:
        waiting, begin = waiting + piece, 0
        while len(waiting) - begin >= FRAME:
            end = waiting.rfind(b"\n", begin, begin + FRAME) + 1
            end = end or waiting.find(b"\n", begin + FRAME) + 1
            if (end or len(waiting)) - begin > LARGEST_FRAME:
                problem = f"line {line} has more than {LARGEST_FRAME >> 20} MiB"
                raise StructureError(f"{problem}. Write one JSON object per line.", shard=path)
            if not end:
                break
            yield waiting[begin:end]
            line += waiting.count(b"\n", begin, end)
            begin = end
        waiting = waiting[begin:]
    if waiting:
        yield waiting
