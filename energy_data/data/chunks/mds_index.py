"""The index of MDS: what index.json says of the shards of MosaicML Streaming."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from energy_data.data.chunks.table import (
    INDEX,
    damaged,
    find_entry,
    is_count,
    read_index,
    read_json,
    read_offsets,
    scan_unlisted,
    wrong_size,
)
from energy_data.data.files.local import Version, keep_open, open_file, version_of
from energy_data.data.files.offsets import IndexedFile
from energy_data.data.files.packed import ALGORITHMS, PackedFile
from energy_data.data.nv_meta import is_inside
from energy_data.data.shards import NO_INDEX, Scan, ShardKind
from energy_data.errors import SpecError

Columns = tuple[tuple[str, str, int | None], ...]
"""The name, the encoding and the fixed size of each column."""


@frozen
class Shard:
    """What an index says of a shard."""

    files: dict[str, int]  # bytes of the raw file, then of the compressed one, if there is one
    count: int  # samples
    columns: Columns
    algorithm: str | None  # of the compression

    @property
    def raw(self) -> str:
        """The file that is not compressed; it need not exist."""
        return next(iter(self.files))

    def file(self, folder: str) -> str:
        """Return the file that is there, the raw one if both are.

        Raises StructureError if it has another size, SpecError for an unknown compression.
        """
        found, name = version_of(f"{folder}/{self.raw}"), self.raw
        if found is None:
            name = next(reversed(self.files))
            found = version_of(f"{folder}/{name}")
        if name != self.raw and self.algorithm not in ALGORITHMS:
            raise SpecError(
                f"{folder}: {name} is compressed by {self.algorithm!r}, which is not supported, "
                f"only {', '.join(ALGORITHMS)}. Decompress it: {self.raw} is used if it exists."
            )
        if found is not None and found.size != self.files[name]:
            raise wrong_size(f"{folder}/{name}", found.size, self.files[name])
        return name


def is_mds(path: str) -> bool:
    """Return whether a path is a folder with an index of MDS, or of files of Streaming."""
    found = read_json(f"{path}/{INDEX}")
    return isinstance(found, dict) and "shards" in found


def _index(path: str, _: Version | None) -> dict[str, Shard]:
    """Return the shards of an index.json by the names of their files, raw and compressed."""
    content = read_index(path)
    if content.get("version") != 2 or not isinstance(entries := content.get("shards"), list):
        found = content.get("version")
        raise damaged(path, f"is no index of MDS of version 2, but of version {found!r}")
    shards: dict[str, Shard] = {}
    for number, entry in enumerate(entries):
        try:
            shard = _shard(entry)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            found = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise damaged(path, f"shard {number} of its list is invalid: {found}") from error
        if again := shards.keys() & shard.files.keys():
            raise damaged(path, f"lists {again.pop()} twice")
        shards |= dict.fromkeys(shard.files, shard)
    return shards


def _shard(entry: Mapping[str, Any]) -> Shard:
    """Return what an entry says. ValueError, or another error, if it is invalid."""
    if entry["version"] != 2 or entry["format"] != "mds":
        problem = f"its format is {entry['format']!r}, version {entry['version']!r}"
        raise ValueError(f"{problem}; only 'mds' of version 2 is supported")
    files = {}
    for facts in filter(None, (entry["raw_data"], entry.get("zip_data"))):
        if not is_inside(name := facts["basename"]) or not is_count(facts["bytes"]):
            raise ValueError(f"{name!r} of {facts['bytes']!r} bytes is no file in its folder")
        files[name] = facts["bytes"]
    if not is_count(count := entry["samples"]):
        raise ValueError(f"it has {count!r} samples")
    names, encodings, sizes = (entry[f"column_{what}"] for what in ("names", "encodings", "sizes"))
    columns = tuple(zip(names, encodings, [size or None for size in sizes], strict=True))
    for name, encoding, size in columns:
        if not (isinstance(name, str) and isinstance(encoding, str) and is_count(size or 0)):
            raise ValueError(f"it has a column {name!r} of {encoding!r} with {size!r} bytes")
    if len(set(names)) < len(names):
        raise ValueError(f"two of its columns have one name, found {', '.join(names)}")
    algorithm = (entry.get("compression") or "").partition(":")[0] or None
    return Shard(files, count, columns, algorithm)


def index_of(folder: Path) -> dict[str, Shard]:
    """Return the shards of a folder by the names of their files, raw and compressed.

    It is read again only if it was changed. StructureError if it is damaged.
    """
    path = f"{folder}/{INDEX}"
    found: dict[str, Shard] = keep_open(_index, path, version_of(path))
    return found


def _listed(folder: Path) -> Mapping[str, Scan | None]:
    """Return the shards that the index of a folder lists, each by the file that is there."""
    if not (folder / INDEX).is_file():
        inner = sorted(one.parent.name for one in folder.glob(f"*/{INDEX}"))
        advice = f"; name one of {', '.join(inner)}, or several in a `blend`" if inner else ""
        raise SpecError(f"{folder}: it has shards of MDS, but no {INDEX}. Restore it{advice}.")
    shards = {id(shard): shard for shard in index_of(folder).values()}
    return {
        shard.file(str(folder)): Scan(
            NO_INDEX, [], [one[0] for one in shard.columns], rows=shard.count
        )
        for shard in shards.values()
    }


def _open_block(
    path: str, index: str, count: int, version: Version, of_index: Version | None, block: int
) -> IndexedFile:
    """Return a shard with a block of its offsets. StructureError if it does not fit its index."""
    folder = index.removesuffix(INDEX)
    name = path.removeprefix(folder)
    shard = find_entry(keep_open(_index, index, of_index), name, index)
    file, size = open_file(path, version), shard.files[name]
    if file.size != size:
        raise wrong_size(path, file.size, size)
    if name != shard.raw:
        file = PackedFile(file, shard.algorithm or "", shard.files[shard.raw])
    return read_offsets(file, count, block)


MDS = ShardKind(".mds", (), scan_unlisted, open_block=_open_block, listed=_listed, index=INDEX)
