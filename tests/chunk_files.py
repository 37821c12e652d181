"""Datasets of MosaicML Streaming and of litdata for the tests, from their published layouts; large
chunks and row groups."""

from __future__ import annotations

import bz2
import gzip
import json
import struct
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

PACK = {"zstd": zstandard.compress, "gz": gzip.compress, "bz2": bz2.compress}


def chunk(samples: list[bytes], config: bytes = b"") -> bytes:
    """The number of samples, their offsets, what MDS has in between, and the samples."""
    first = 4 * (len(samples) + 2) + len(config)
    offsets = list(accumulate(map(len, samples), initial=first))
    return np.array([len(samples), *offsets], "<u4").tobytes() + config + b"".join(samples)


def mds_sample(values: list[bytes], sizes: list[int | None]) -> bytes:
    heads = [len(value) for value, size in zip(values, sizes, strict=True) if size is None]
    return np.array(heads, "<u4").tobytes() + b"".join(values)


def write_mds(
    folder: Path,
    shards: list[list[list[bytes]]],
    columns: dict[str, str],
    sizes: dict[str, int] | None = None,
    compression: str | None = None,
) -> Path:
    """Write shards of samples, each the bytes of its columns.

    columns: their encodings. sizes: bytes of those that have a fixed number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fixed = [(sizes or {}).get(name) for name in columns]
    facts = {
        "column_encodings": list(columns.values()),
        "column_names": list(columns),
        "column_sizes": fixed,
        "compression": compression,
        "format": "mds",
        "hashes": [],
        "size_limit": 1 << 26,
        "version": 2,
    }
    entries = []
    for number, samples in enumerate(shards):
        raw = chunk([mds_sample(one, fixed) for one in samples], json.dumps(facts).encode())
        name, packed = f"shard.{number:05}.mds", None
        files = {"raw_data": {"basename": name, "bytes": len(raw), "hashes": {}}, "zip_data": None}
        if compression:
            algorithm = compression.partition(":")[0]
            name, packed = f"{name}.{algorithm}", PACK[algorithm](raw)
            files["zip_data"] = {"basename": name, "bytes": len(packed), "hashes": {}}
        (folder / name).write_bytes(packed or raw)
        entries.append({**facts, **files, "samples": len(samples)})
    (folder / "index.json").write_text(json.dumps({"shards": entries, "version": 2}))
    return folder


def numbers_as_mds(folder: Path, counts: list[int], compression: str | None = None) -> Path:
    """Write shards of so many samples, which have a number and its text, numbered through."""
    first, shards = 0, []
    for count in counts:
        numbers = range(first, first + count)
        shards.append([[struct.pack("<q", n), f"text {n}".encode()] for n in numbers])
        first += count
    columns = {"number": "int", "text": "str"}
    return write_mds(folder, shards, columns, {"number": 8}, compression)


def large_rows(count: int, size: int = 1 << 19) -> tuple[list[int], list[bytes]]:
    """Return numbers, and that many texts of bytes that cannot be compressed."""
    return list(range(count)), [np.random.default_rng(n).bytes(size) for n in range(count)]


def large_mds(
    folder: Path, counts: list[int], compression: str = "zstd", size: int = 1 << 19
) -> Path:
    """Write shards of so many samples of 512 KiB, or another size."""
    numbers, texts = large_rows(sum(counts), size)
    samples = [[struct.pack("<q", n), text] for n, text in zip(numbers, texts, strict=True)]
    ends = list(accumulate(counts))
    shards = [samples[end - count : end] for count, end in zip(counts, ends, strict=True)]
    return write_mds(folder, shards, {"n": "int", "data": "bytes"}, {"n": 8}, compression)


def large_parquet(path: Path, count: int, *, per_group: int, size: int = 1 << 19) -> Path:
    """Write rows of 512 KiB, or another size."""
    numbers, texts = large_rows(count, size)
    pq.write_table(pa.table({"n": numbers, "data": texts}), path, row_group_size=per_group)
    return path


def large_arrow(path: Path, count: int, *, per_batch: int, size: int) -> Path:
    """Write rows of some bytes to a stream."""
    numbers, texts = large_rows(count, size)
    table = pa.table({"n": numbers, "data": texts})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=per_batch)
    return path


def edited(path, change):
    """Change the index of a folder. change: called with its first shard, and all of it."""
    index = json.loads((path / "index.json").read_text())
    change(index["shards"][0], index)
    (path / "index.json").write_text(json.dumps(index))
    return path


def put(**facts):
    return lambda entry, index: entry.update(facts)


def u4(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


def write_litdata(
    folder: Path, chunks: list[list[list[bytes]]], spec: object, formats: list[str], **config
) -> Path:
    """Write chunks of items, each the bytes of its leaves; spec: a tree of None."""
    folder.mkdir(parents=True, exist_ok=True)
    is_tokens = config.get("item_loader") == "TokensLoader"
    entries = []
    for number, items in enumerate(chunks):
        heads = [b"" if is_tokens else u4(*map(len, leaves)) for leaves in items]
        data = chunk([head + b"".join(one) for head, one in zip(heads, items, strict=True)])
        zipped = config.get("compression")
        name = f"chunk-0-{number}{f'.{zipped}' if zipped else ''}.bin"
        (folder / name).write_bytes(zstandard.compress(data) if zipped else data)
        facts = {"chunk_bytes": len(data), "chunk_size": len(items), "dim": None}
        entries.append({**facts, "filename": name})
    config = {
        "compression": None,
        "chunk_size": None,
        "chunk_bytes": 1 << 26,
        "data_format": formats,
        "data_spec": json.dumps([1, litdata_spec(spec)]),
        "encryption": None,
        "item_loader": "PyTreeLoader",
        **config,
    }
    (folder / "index.json").write_text(json.dumps({"chunks": entries, "config": config}))
    return folder


def litdata_spec(tree):
    """A tree of None as torch writes a pytree as JSON."""
    if tree is None:
        return {"type": None, "context": None, "children_spec": []}
    inner = tree.values() if isinstance(tree, dict) else tree
    context = list(tree) if isinstance(tree, dict) else None
    return {
        "type": f"builtins.{type(tree).__name__}",
        "context": json.dumps(context),
        "children_spec": [litdata_spec(one) for one in inner],
    }


def numbers_as_litdata(folder: Path, counts: list[int], **config) -> Path:
    """Write chunks of so many items, which have a number and its text, numbered through."""
    first, chunks = 0, []
    for count in counts:
        numbers = range(first, first + count)
        chunks.append([[struct.pack("<q", n), f"text {n}".encode()] for n in numbers])
        first += count
    return write_litdata(folder, chunks, {"number": None, "text": None}, ["int", "str"], **config)


def documents_as_litdata(folder: Path, documents: list[list[int]], first: int = 3) -> Path:
    """Write documents of tokens for a TokensLoader, so many in the first of two chunks."""
    items = [[np.array(one, "<u2").tobytes()] for one in documents]
    chunks = [items[:first], items[first:]]
    return write_litdata(folder, chunks, None, ["no_header_numpy:5"], item_loader="TokensLoader")
