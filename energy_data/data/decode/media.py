"""Audio and video: bytes -> a decoder, or all of it decoded (extra `av`)."""

from __future__ import annotations

import io
import json
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

from energy_data.data.decode.av import AVDecoder, AVMetadata, open_container, require_av
from energy_data.data.decode.images import open_image
from energy_data.data.decode.sniff import extension_of
from energy_data.data.files.local import LocalFile, open_anew
from energy_data.data.tar.nv_meta import FOLDER, SQLITE, read_counts
from energy_data.data.tar.sqlite import SqliteIndex, utf8
from energy_data.data.typed.samples import edataclass
from energy_data.errors import MissingExtraError, SpecError

AVMode = Literal["torch", "AVDecoder", "pyav"]

MEDIA_EXTENSIONS = frozenset(("mp4", "avi", "mov", "webm", "mkv", "flac", "mp3", "wav", "flv"))


def media_decoder(mode: AVMode, *, with_audio: bool) -> Callable[[bytes | memoryview], Any]:
    """Return the decoder of a mode: see `SampleDecoder`.

    Raises MissingExtraError if PyAV is needed at once, and not installed.
    """
    if mode == "AVDecoder":
        return _decoder
    require_av()
    if mode == "pyav":
        return _container
    return partial(_decoded, with_audio=with_audio)


def _decoder(data: bytes | memoryview) -> AVDecoder:
    return AVDecoder(io.BytesIO(data))


def _container(data: bytes | memoryview) -> Any:
    return open_container(io.BytesIO(data))


def _decoded(data: bytes | memoryview, *, with_audio: bool) -> Any:
    return _decoder(data).get_frames(video_decode_audio=with_audio)


log = logging.getLogger(__name__)

Kind = Literal["image", "av"]

_IMAGES = frozenset(
    ("bmp", "gif", "ico", "j2k", "jp2", "jpx", "jpeg", "jpg", "png", "tif", "tiff", "webp")
)
_MEDIA = frozenset(
    ("aac", "avi", "flac", "m4a", "m4v", "mkv", "mov", "mp3", "mp4", "ogg", "wav", "webm")
)
_HEAD = 16  # bytes that identify a file
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
    with _written_anew(path / FOLDER / SQLITE, wanted) as connection:
        return _put(connection, _facts(connection, path, wanted))


def collect_files(path: Path, wanted: MediaFilter) -> int:
    """Collect facts about the media below a folder, as `collect_media` does; return their number.

    The facts are written to an `index.sqlite` in `.nv-meta`, by path relative to the folder.
    """
    (path / FOLDER).mkdir(exist_ok=True)
    with _written_anew(path / FOLDER / SQLITE, wanted) as connection:
        return _put(connection, _facts_of_files(path, wanted))


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


@contextmanager
def _written_anew(database: Path, wanted: MediaFilter) -> Iterator[sqlite3.Connection]:
    """Yield a copy of a database without facts; it replaces the database at the end."""
    part = database.with_name(f".{SQLITE}.part")
    part.unlink(missing_ok=True)
    if database.exists():
        shutil.copy(database, part)
    connection = sqlite3.connect(part)
    try:
        connection.executescript(_TABLES)
        yield connection
        connection.execute(
            "INSERT INTO media_filters (strategy, patterns) VALUES (?, ?)",
            (wanted.strategy, ",".join(wanted.patterns)),
        )
        connection.commit()
        connection.close()
        part.replace(database)
    finally:
        connection.close()
        part.unlink(missing_ok=True)


def _put(connection: sqlite3.Connection, facts: Iterator[tuple[str, str, str]]) -> int:
    rows = list(facts)
    connection.executemany("INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)", rows)
    return len(rows)


def _facts_of_files(path: Path, wanted: MediaFilter) -> Iterator[tuple[str, str, str]]:
    for place in sorted(path.rglob("*")):
        name = place.relative_to(path).as_posix()
        if name.split("/")[0] == FOLDER or not place.is_file():
            continue
        file = open_anew(str(place))
        yield from _row(wanted, name, file, 0, file.size)


def _facts(
    connection: sqlite3.Connection, path: Path, wanted: MediaFilter
) -> Iterator[tuple[str, str, str]]:
    shards, number, file = list(read_counts(path)), -1, None
    for shard, name, offset, size in connection.execute(_PARTS):
        if shard != number or file is None:
            number, file = shard, open_anew(str(path / shards[shard]))
        yield from _row(wanted, name, file, offset, size)


def _row(
    wanted: MediaFilter, name: str, file: LocalFile, offset: int, size: int
) -> Iterator[tuple[str, str, str]]:
    kind = wanted.kind_of(name, file.read(offset, min(size, _HEAD)))
    facts = kind and _fact(kind, name, file, offset, size)
    if kind and facts:
        plain = {key: value for key, value in asdict(facts).items() if value is not None}
        yield name, kind, json.dumps(plain, separators=(",", ":"))


def _fact(
    kind: Kind, name: str, file: LocalFile, offset: int, size: int
) -> AVMetadata | ImageMetadata | None:
    stream = io.BytesIO(file.read(offset, size))
    try:
        if kind == "av":
            return AVDecoder(stream).get_metadata(get_audio_num_samples=True)
        with open_image(stream) as image:
            return ImageMetadata(
                width=image.width, height=image.height, format=image.format, mode=image.mode
            )
    except MissingExtraError:
        raise
    except Exception as error:  # noqa: BLE001 - damaged data can raise any error
        log.warning("%s: %s: its facts cannot be read: %s", file.path, name, error)
        return None


def _kind(extension: str) -> Kind | None:
    return "image" if extension in _IMAGES else "av" if extension in _MEDIA else None
