"""Facts about the images, audio and video of a dataset, in its `index.sqlite`, as Energon has them.

collect_media(Path("/data/coco"), MediaFilter("EXTENSION"))
WebdatasetFileStore("/data/coco").get_media_metadata("0001.jpg").width
"""

from __future__ import annotations

import io
import json
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

from energy_data.errors import MissingExtraError
from energy_data.samples.edataclass import edataclass
from energy_data.sources.av_decoder import AVDecoder, AVMetadata
from energy_data.sources.images import open_image
from energy_data.sources.sniff import extension_of
from energy_data.sources.tar_meta import FOLDER, SQLITE, read_counts
from energy_data.storage.files import File, open_anew

log = logging.getLogger(__name__)

Kind = Literal["image", "av"]

_IMAGES = frozenset(
    ("bmp", "gif", "ico", "j2k", "jp2", "jpx", "jpeg", "jpg", "png", "tif", "tiff", "webp")
)
_MEDIA = frozenset(
    ("aac", "avi", "flac", "m4a", "m4v", "mkv", "mov", "mp3", "mp4", "ogg", "wav", "webm")
)
_HEAD = 16  # bytes that tell what a file is
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
_PARTS = (
    "SELECT s.tar_file_id, s.sample_key || '.' || p.part_name, "
    "p.content_byte_offset, p.content_byte_size FROM sample_parts p JOIN samples s "
    "ON s.tar_file_id = p.tar_file_id AND s.sample_index = p.sample_index "
    "ORDER BY p.tar_file_id, p.content_byte_offset"
)


@edataclass
class ImageMetadata:
    """What an image file says of itself."""

    width: int
    height: int
    format: str  # as Pillow calls it, such as JPEG
    mode: str  # as Pillow calls it, such as RGB


@frozen
class MediaFilter:
    """Which parts are looked at: by extension, by how they begin, or by patterns of their names."""

    strategy: Literal["EXTENSION", "HEADER", "GLOB"]
    patterns: tuple[str, ...] = ()

    def kind_of(self, name: str, head: bytes) -> Kind | None:
        """Return what a part is; None: nothing that is looked at."""
        if self.strategy == "GLOB" and not any(fnmatchcase(name, one) for one in self.patterns):
            return None
        by_name = _kind(name.rpartition(".")[2].lower())
        return by_name if self.strategy == "EXTENSION" else _kind(extension_of(head)) or by_name


def collect_media(path: Path, wanted: MediaFilter) -> int:
    """Look at the media of a dataset that was prepared with sqlite; return how many there are.

    Files that are damaged are passed over and logged. Images are opened, not decoded; video is
    read, and sound decoded, to count samples. Raises MissingExtraError without Pillow or PyAV.
    """
    database = path / FOLDER / SQLITE
    part = database.with_name(f".{SQLITE}.part")
    shutil.copyfile(database, part)
    connection = sqlite3.connect(part)
    try:
        connection.executescript(_TABLES)
        rows = list(_facts(connection, path, wanted))
        connection.executemany("INSERT OR REPLACE INTO media_metadata VALUES (?, ?, ?)", rows)
        connection.execute(
            "INSERT INTO media_filters (strategy, patterns) VALUES (?, ?)",
            (wanted.strategy, ",".join(wanted.patterns)),
        )
        connection.commit()
        connection.close()
        shutil.copymode(database, part)
        part.replace(database)
    finally:
        connection.close()
        part.unlink(missing_ok=True)
    return len(rows)


def read_media(kind: str, text: str) -> AVMetadata | ImageMetadata:
    """Return the facts of a row. Raises ValueError for a kind that is not known."""
    said: dict[str, Any] = json.loads(text) if text else {}
    if kind == "image":
        return ImageMetadata(**said)
    if kind == "av":
        return AVMetadata(**said)
    raise ValueError(f"facts about media of the kind {kind!r} are not known")


def _facts(
    connection: sqlite3.Connection, path: Path, wanted: MediaFilter
) -> Iterator[tuple[str, str, str]]:
    shards, number, file = list(read_counts(path)), -1, None
    for shard, name, offset, size in connection.execute(_PARTS):
        if shard != number or file is None:
            number, file = shard, open_anew(str(path / shards[shard]))
        kind = wanted.kind_of(name, file.read(offset, min(size, _HEAD)))
        said = kind and _fact(kind, name, file, offset, size)
        if kind and said:
            plain = {key: value for key, value in asdict(said).items() if value is not None}
            yield name, kind, json.dumps(plain, separators=(",", ":"))


def _fact(
    kind: Kind, name: str, file: File, offset: int, size: int
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
    except Exception as error:  # noqa: BLE001 - damaged data make all kinds of errors
        log.warning("%s: %s: nothing can be told of it: %s", file.path, name, error)
        return None


def _kind(extension: str) -> Kind | None:
    return "image" if extension in _IMAGES else "av" if extension in _MEDIA else None
