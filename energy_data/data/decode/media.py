"""Facts about media: which files are images, audio or video, and their sizes and lengths."""

from __future__ import annotations

import io
import json
import logging
import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from attrs import frozen

from energy_data.core.processes import map_in_processes, num_processes
from energy_data.data.decode.av import MEDIA_EXTENSIONS, AVDecoder, AVMetadata
from energy_data.data.decode.images import EXTENSIONS, open_image
from energy_data.data.files.local import LocalFile, open_file
from energy_data.data.nv_meta import FOLDER, SQLITE, NvMeta
from energy_data.data.shards import Progress
from energy_data.data.tar.sqlite import SqliteIndex, rewritten, utf8
from energy_data.data.typed.samples import edataclass
from energy_data.errors import MissingExtraError, SpecError

log = logging.getLogger(__name__)

Kind = Literal["image", "av"]

_MEDIA = MEDIA_EXTENSIONS | {"aac", "m4a", "m4v", "ogg"}
_HEAD = 16  # bytes that identify a file
_BYTES_PER_WORKER, _FILES_PER_WORKER = 1 << 30, 1 << 10  # reading takes as long as a process starts
_BYTES_AT_ONCE, _FILES_AT_ONCE = 1 << 24, 16
_PREFIXES = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"\0\0\0\x0cjP  ", "jp2"),
    (b"\x1aE\xdf\xa3", "mkv"),  # webm begins with the same bytes and is read in the same way
    (b"fLaC", "flac"),
    (b"ID3", "mp3"),
    (b"\xff\xfb", "mp3"),
    (b"FLV\x01", "flv"),
)
_RIFF = {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi"}
_TABLES = """
DROP TABLE IF EXISTS media_metadata;
DROP TABLE IF EXISTS media_filters;
CREATE TABLE media_metadata (
    entry_key TEXT PRIMARY KEY,
    metadata_type TEXT NOT NULL,
    metadata_json TEXT NOT NULL
);
CREATE TABLE media_filters (
    filter_id INTEGER PRIMARY KEY AUTOINCREMENT,
    strategy TEXT NOT NULL,
    patterns TEXT,
    created_at_utc TEXT DEFAULT CURRENT_TIMESTAMP,
    UNIQUE(strategy, patterns)
);
"""
_FACT = "SELECT metadata_type, metadata_json FROM media_metadata WHERE entry_key = ?"
_PARTS = (
    "SELECT s.tar_file_id, s.sample_key || '.' || p.part_name, "
    "p.content_byte_offset, p.content_byte_size FROM sample_parts p JOIN samples s "
    "ON s.tar_file_id = p.tar_file_id AND s.sample_index = p.sample_index "
    "ORDER BY p.tar_file_id, p.content_byte_offset"
)


_EXTENT = "SELECT COUNT(*), SUM(content_byte_size) FROM sample_parts"
_Row = tuple[str, str, str]  # name, kind and facts


@edataclass
class ImageMetadata:
    """Facts about an image file."""

    width: int
    height: int
    format: str  # as Pillow calls it, such as JPEG
    mode: str  # as Pillow calls it, such as RGB


@frozen
class MediaFilter:
    """Selects parts by extension, by their first bytes, or by patterns of their names."""

    strategy: Literal["EXTENSION", "HEADER", "GLOB"]
    patterns: tuple[str, ...] = ()

    def kind_of(self, name: str, head: bytes) -> Kind | None:
        """Return the kind of a part; None if it is not selected."""
        if self.strategy == "GLOB" and not any(fnmatchcase(name, one) for one in self.patterns):
            return None
        by_name = _kind(name.rpartition(".")[2].lower())
        return by_name if self.strategy == "EXTENSION" else _kind(extension_of(head)) or by_name


def collect_media(
    path: Path,
    wanted: MediaFilter,
    *,
    workers: int | None = None,
    tmp: Path | None = None,
    progress: Progress | None = None,
) -> int:
    """Collect facts about the media of a dataset prepared with sqlite; return their number.

    Damaged files are skipped and logged. Images are opened, not decoded; video is read, and audio
    decoded, to count samples. Raises MissingExtraError without Pillow or PyAV.

    workers: number of processes; by default one per GiB or 1,024 files, at most one per CPU. tmp:
    folder in which `index.sqlite` is built; by default the dataset's. progress: called with the
    number of files that are done, and of all.
    """
    with rewritten(path / FOLDER / SQLITE, tmp, keep=True) as database:
        count, size = database.execute(_EXTENT).fetchone()
        parts = _parts_of_tars(database, path)
        return _collect(database, _Work(parts, count, size or 0, workers, progress), wanted)


def collect_files(
    path: Path,
    wanted: MediaFilter,
    *,
    workers: int | None = None,
    tmp: Path | None = None,
    progress: Progress | None = None,
) -> int:
    """Collect facts about the media below a folder, as `collect_media` does; return their number.

    The facts are written to an `index.sqlite` in `.nv-meta`, by path relative to the folder.
    """
    with rewritten(path / FOLDER / SQLITE, tmp, keep=True) as database:
        files = _files_below(path)
        size = sum(one.size for one in files)
        return _collect(database, _Work(files, len(files), size, workers, progress), wanted)


def fact_of(
    index: SqliteIndex | None, path: str, key: str, command: str
) -> AVMetadata | ImageMetadata:
    """Return the facts about a file from an index.

    Raises KeyError if there are none, SpecError if none were collected (which `command` does).
    """
    if index is None or not index.has_table("media_metadata"):
        raise SpecError(
            f"{path}: no facts about media were collected. Run `energy-data {command} "
            "--media-metadata-by-extension` on it."
        )
    for kind, text in index.rows(_FACT, utf8(key)):
        return read_media(kind, text)
    raise KeyError(f"{path}: nothing is known about {key!r}.")


def read_media(kind: str, text: str) -> AVMetadata | ImageMetadata:
    """Return the facts of a row. Raises ValueError for a kind that is not known."""
    facts: dict[str, Any] = json.loads(text) if text else {}
    if kind == "image":
        return ImageMetadata(**facts)
    if kind == "av":
        return AVMetadata(**facts)
    raise ValueError(f"facts about media of the kind {kind!r} are not known")


class _Part(NamedTuple):
    """Where a part is: its name, and its file, offset and size."""

    name: str
    path: str
    offset: int
    size: int


@frozen
class _Work:
    """The parts to look at, their number and size, and how."""

    parts: Iterable[_Part]
    count: int
    size: int
    workers: int | None
    progress: Progress | None

    @property
    def processes(self) -> int:
        """The number of processes; as many as are worth their start if none is given."""
        worth = max(self.count // _FILES_PER_WORKER, self.size // _BYTES_PER_WORKER)
        return min(num_processes(self.workers, worth), self.count)

    def chunks(self) -> Iterator[list[_Part]]:
        """Yield the parts, a few at a time: one call for each would take longer than an image."""
        chunk: list[_Part] = []
        size = 0
        for part in self.parts:
            chunk.append(part)
            size += part.size
            if len(chunk) == _FILES_AT_ONCE or size >= _BYTES_AT_ONCE:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk


def _collect(database: sqlite3.Connection, work: _Work, wanted: MediaFilter) -> int:
    """Replace the facts in a database; return their number."""
    database.executescript(_TABLES)
    with closing(_rows(work, wanted)) as rows:
        database.executemany("INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)", rows)
    database.execute(
        "INSERT INTO media_filters (strategy, patterns) VALUES (?, ?)",
        (wanted.strategy, ",".join(wanted.patterns)),
    )
    return int(database.execute("SELECT COUNT(*) FROM media_metadata").fetchone()[0])


def _rows(work: _Work, wanted: MediaFilter) -> Generator[_Row, None, None]:
    """Yield the rows of all parts that are selected, in order; log those that are damaged."""
    call = partial(_rows_of, wanted)
    found = map_in_processes(call, work.chunks(), workers=work.processes, preload=(__name__,))
    done = 0
    with closing(found):
        for rows in found:
            for row in rows:
                if isinstance(row, tuple):
                    yield row
                elif row is not None:
                    log.warning(row)
            done += len(rows)
            if work.progress:
                work.progress(done, work.count)


def _files_below(path: Path) -> list[_Part]:
    files = []
    for place in sorted(path.rglob("*")):
        name = place.relative_to(path).as_posix()
        if name.split("/")[0] != FOLDER and place.is_file():
            files.append(_Part(name, str(place), 0, place.stat().st_size))
    return files


def _parts_of_tars(database: sqlite3.Connection, path: Path) -> Iterator[_Part]:
    prepared = NvMeta.of(path)
    shards = [] if prepared is None else list(prepared.counts)
    for shard, name, offset, size in database.execute(_PARTS):
        yield _Part(name, str(path / shards[shard]), offset, size)


def _rows_of(wanted: MediaFilter, parts: list[_Part]) -> list[_Row | str | None]:
    """Return the row of each part; None if it is not selected, a text if it is damaged."""
    file = None
    rows = []
    for part in parts:
        if file is None or file.path != part.path:
            file = open_file(part.path)
        rows.append(_row(wanted, part, file))
    return rows


def _row(wanted: MediaFilter, part: _Part, file: LocalFile) -> _Row | str | None:
    kind = wanted.kind_of(part.name, file.read(part.offset, min(part.size, _HEAD)))
    if kind is None:
        return None
    stream = io.BytesIO(file.read(part.offset, part.size))
    try:
        if kind == "av":
            facts = asdict(AVDecoder(stream).get_metadata(get_audio_num_samples=True))
        else:
            with open_image(stream) as image:
                names = ("width", "height", "format", "mode")
                facts = {name: getattr(image, name) for name in names}
    except MissingExtraError:
        raise
    except Exception as error:  # noqa: BLE001 - damaged data can raise any error
        return f"{file.path}: {part.name}: its facts cannot be read: {error}"
    known = {key: value for key, value in facts.items() if value is not None}
    return part.name, kind, json.dumps(known, separators=(",", ":"))


def _kind(extension: str) -> Kind | None:
    return "image" if extension in EXTENSIONS else "av" if extension in _MEDIA else None


def extension_of(data: bytes | memoryview) -> str:
    """Return the usual extension of an image, audio or video file; "" if it is none that is known.

    data: the file, or its beginning.
    """
    head = bytes(data[:_HEAD])
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12], "")
    if head[4:8] == b"ftyp":
        return "mov" if head[8:10] == b"qt" else "mp4"
    return next((extension for prefix, extension in _PREFIXES if head.startswith(prefix)), "")
