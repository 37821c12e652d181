"""The index of litdata: what index.json says of its chunks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from attrs import frozen

from energy_data.data.chunks.serializers import Tree, TreeLeaf, parse_tree
from energy_data.data.chunks.table import (
    ADVICE,
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
from energy_data.data.files.packed import PackedFile
from energy_data.data.nv_meta import is_inside
from energy_data.data.shards import NO_INDEX, Scan, ShardKind
from energy_data.errors import SpecError, StructureError

_TOKENS = "TokensLoader"
_ROWS_OF_ARROW = b"LDARW01\0"  # the last bytes of a chunk


class Chunk(NamedTuple):
    """What an index says of a chunk."""

    num_samples: int
    size: int  # bytes, not compressed; in older indices without those of the offsets


@frozen(eq=False)
class LitdataIndex:
    """What is in an index.json.

    entries: the entries of a sample, which are trees of leaves. formats: the serializers of leaves.
    """

    chunks: Mapping[str, Chunk]
    entries: Mapping[str, Tree]
    leaves: list[TreeLeaf]
    formats: list[str]
    is_packed: bool  # compressed as a whole by zstd
    is_tokens: bool  # samples are the bytes of their one leaf, without its size


def is_litdata(path: str) -> bool:
    """Return whether a path is a folder with an index of chunks of litdata."""
    found = read_json(f"{path}/{INDEX}")
    if found is None and Path(path, INDEX).is_file():  # no JSON
        return any(Path(path).glob("chunk-*-*.bin"))
    if not isinstance(found, dict) or "chunks" not in found:
        return False
    config = found.get("config")
    # An index of Parquet files is only that: they are read as such.
    return not (isinstance(config, dict) and config.get("item_loader") == "ParquetLoader")


def litdata_index(folder: Path | str) -> LitdataIndex:
    """Return the index of a folder; it is read again only if it was changed.

    Raises SpecError for chunks that cannot be read here, StructureError if it is damaged.
    """
    path = f"{folder}/{INDEX}"
    found: LitdataIndex = keep_open(_index, path, version_of(path))
    return found


def _index(path: str, _: Version | None) -> LitdataIndex:
    content = read_index(path)
    config, entries = content.get("config"), content.get("chunks")
    if not isinstance(config, dict) or not isinstance(entries, list):
        raise damaged(path, "has no `chunks` and `config` of litdata")
    _check_config(config, path)
    try:
        tree, leaves = parse_tree(config["data_spec"])
        formats = config["data_format"]
        if not all(isinstance(one, str) for one in formats) or len(formats) != len(leaves):
            raise ValueError(f"it has {len(leaves)} leaves, but the formats {formats!r}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise damaged(path, f"its `data_spec` cannot be used: {error!r}") from error
    chunks: dict[str, Chunk] = {}
    has_dims = False
    for number, entry in enumerate(entries):
        name, count, size = _facts(entry)
        if not (is_inside(name) and is_count(count) and is_count(size)) or name in chunks:
            found = f"{name!r} with {count!r} samples in {size!r} bytes"
            raise damaged(path, f"chunk {number} of its list is invalid, or there twice: {found}")
        chunks[name] = Chunk(count, size)
        has_dims |= entry.get("dim") is not None
    is_tokens = len(formats) == 1 and (config.get("item_loader") == _TOKENS or has_dims)
    return LitdataIndex(chunks, tree, leaves, formats, bool(config.get("compression")), is_tokens)


def _facts(entry: Any) -> tuple[Any, Any, Any]:
    facts = entry if isinstance(entry, dict) else {}
    return facts.get("filename"), facts.get("chunk_size"), facts.get("chunk_bytes")


def _check_config(config: Mapping[str, Any], path: str) -> None:
    """Raise SpecError for chunks in a form that cannot be read here."""
    compression, level = str(config.get("compression") or "zstd"), config.get("compression_level")
    loader = config.get("item_loader", "PyTreeLoader")
    if config.get("encryption"):
        problem = "they are encrypted"
    elif compression.partition(":")[0] != "zstd":
        problem = f"they are compressed by {compression!r}, only zstd is supported"
    elif level not in (None, "chunk"):
        problem = f"samples in them are compressed, with compression_level {level!r}"
    elif loader not in ("PyTreeLoader", _TOKENS):
        problem = f"they are for the {loader}"
    else:
        return
    raise SpecError(
        f"{path}: its chunks cannot be read: {problem}. Write them without it; if they are to be "
        'compressed, by litdata with compression="zstd" and compression_level="chunk".'
    )


def _listed(folder: Path) -> Mapping[str, Scan | None] | None:
    """Return the chunks that the index of a folder lists."""
    index = litdata_index(folder)
    names = list(index.entries)
    found = {}
    for name, chunk in index.chunks.items():
        version = version_of(f"{folder}/{name}")
        if version is not None and not index.is_packed and not _fits(version.size, chunk):
            raise wrong_size(f"{folder}/{name}", version.size, chunk.size)
        found[name] = Scan(NO_INDEX, [], names, rows=chunk.num_samples)
    return found


def _fits(size: int, chunk: Chunk) -> bool:
    """Return whether a chunk may have so many bytes."""
    return size - chunk.size in (0, 4 * (chunk.num_samples + 2))


def _open_block(
    path: str, index: str, count: int, version: Version, _: Version | None, block: int
) -> IndexedFile:
    """Return a chunk with a block of its offsets. StructureError if it does not fit its index."""
    folder = index.removesuffix(f"/{INDEX}")
    found = litdata_index(folder)
    name = path.removeprefix(f"{folder}/")
    file, chunk = open_file(path, version), find_entry(found.chunks, name, index)
    if found.is_packed:
        table = 4 * (count + 2)
        head = PackedFile.head(file, "zstd", table)
        size = int.from_bytes(head[-4:], "little")
        if len(head) < table or not _fits(size, chunk):
            problem = f"unpacks to {size} bytes, but {INDEX} says {chunk.size}"
            raise StructureError(f"{problem}. {ADVICE}", shard=path)
        file = PackedFile(file, "zstd", size)
    elif file.size >= 8 and file.read(file.size - 8, 8) == _ROWS_OF_ARROW:
        raise StructureError(
            "its samples are rows of Arrow, which litdata writes of dicts of texts and numbers if "
            "pyarrow is installed. Write them where it is not; or write Parquet files.",
            shard=path,
        )
    return read_offsets(file, count, block)


LITDATA = ShardKind(".bin", (), scan_unlisted, open_block=_open_block, listed=_listed, index=INDEX)
