"""Facts about media: which files are images, audio or video, and their sizes and lengths."""

from __future__ import annotations

import io
import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

from energy_data.data.decode.av import MEDIA_EXTENSIONS, AVDecoder, AVMetadata
from energy_data.data.decode.images import EXTENSIONS, open_image
from energy_data.data.files.local import LocalFile, keep_open, open_file
from energy_data.data.tar.nv_meta import FOLDER, SQLITE, NvMeta
from energy_data.data.tar.sqlite import SqliteIndex, rewritten, utf8
from energy_data.data.typed.samples import edataclass
from energy_data.errors import MissingExtraError, SpecError

log = logging.getLogger(__name__)

Kind = Literal["image", "av"]

_MEDIA = MEDIA_EXTENSIONS | {"aac", "m4a", "m4v", "ogg"}
_HEAD = 16  # bytes that identify a file
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


def collect_media(path: Path, wanted: MediaFilter) -> int:
    """Collect facts about the media of a dataset prepared with sqlite; return their number.

    Damaged files are skipped and logged. Images are opened, not decoded; video is read, and audio
    decoded, to count samples. Raises MissingExtraError without Pillow or PyAV.
    """
    with rewritten(path / FOLDER / SQLITE, keep=True) as database:
        return _collect(database, wanted, _parts_of_tars(database, path))


def collect_files(path: Path, wanted: MediaFilter) -> int:
    """Collect facts about the media below a folder, as `collect_media` does; return their number.

    The facts are written to an `index.sqlite` in `.nv-meta`, by path relative to the folder.
    """
    with rewritten(path / FOLDER / SQLITE, keep=True) as database:
        return _collect(database, wanted, _files_below(path))


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


Place = tuple[str, LocalFile, int, int]
"""A part: its name, and where it is: file, offset, size."""


def _collect(database: sqlite3.Connection, wanted: MediaFilter, parts: Iterable[Place]) -> int:
    """Replace the facts in a database; return their number."""
    database.executescript(_TABLES)
    rows = [row for part in parts if (row := _row(wanted, *part)) is not None]
    database.executemany("INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)", rows)
    database.execute(
        "INSERT INTO media_filters (strategy, patterns) VALUES (?, ?)",
        (wanted.strategy, ",".join(wanted.patterns)),
    )
    return len(rows)


def _files_below(path: Path) -> Iterator[Place]:
    for place in sorted(path.rglob("*")):
        name = place.relative_to(path).as_posix()
        if name.split("/")[0] != FOLDER and place.is_file():
            file = open_file(str(place))
            yield name, file, 0, file.size


def _parts_of_tars(database: sqlite3.Connection, path: Path) -> Iterator[Place]:
    prepared = NvMeta.of(path)
    shards = [] if prepared is None else list(prepared.counts)
    for shard, name, offset, size in database.execute(_PARTS):
        yield name, keep_open(open_file, str(path / shards[shard])), offset, size


def _row(
    wanted: MediaFilter, name: str, file: LocalFile, offset: int, size: int
) -> tuple[str, str, str] | None:
    """Return name, kind and facts of a part; None if it is not selected, or damaged."""
    kind = wanted.kind_of(name, file.read(offset, min(size, _HEAD)))
    if kind is None:
        return None
    stream = io.BytesIO(file.read(offset, size))
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
        log.warning("%s: %s: its facts cannot be read: %s", file.path, name, error)
        return None
    known = {key: value for key, value in facts.items() if value is not None}
    return name, kind, json.dumps(known, separators=(",", ":"))


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
