"""Datasets to be read from a store, made by the tools of others where there are some."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from chunk_files import large_parquet

COUNT = 400


def jsonl(path, count=COUNT, size=200):
    lines = (json.dumps({"n": n, "text": f"{n} " + "x" * (n % size)}) for n in range(count))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def tars(folder, count=COUNT, per_shard=100):
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, count, per_shard):
        with tarfile.open(folder / f"{first:05d}.tar", "w") as tar:
            for number in range(first, first + per_shard):
                for name, data in (("txt", f"text {number} " * 40), ("json", f'{{"n": {number}}}')):
                    info = tarfile.TarInfo(f"{number:06d}.{name}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data.encode()))


def parquet(path, count=COUNT):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"n": range(count), "text": [f"text {n} " * 30 for n in range(count)]})
    pq.write_table(table, path, row_group_size=50)


def large_groups(path, count=COUNT, per_group=COUNT // 2):
    """Row groups that are decoded in pieces."""
    path.parent.mkdir(parents=True, exist_ok=True)
    large_parquet(path, count, per_group=per_group, size=1 << 16)


def arrow(path, count=COUNT):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"n": range(count)})
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=50)


def tokens(path, count=COUNT):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.arange(count * 16, dtype=np.uint16).reshape(count, 16))


def mds(folder, count=COUNT):
    """Two raw shards of MosaicML's layout."""
    folder.mkdir(parents=True)
    shards = []
    for number, first in enumerate(range(0, count, count // 2)):
        samples = []
        for n in range(first, first + count // 2):
            text = f"text {n}".encode()
            samples.append(np.uint32(len(text)).tobytes() + text)
        config = json.dumps({}).encode()
        head = 4 + 4 * (len(samples) + 1) + len(config)
        offsets = np.cumsum([head, *map(len, samples)]).astype(np.uint32)
        name = f"shard.{number:05d}.mds"
        data = np.uint32(len(samples)).tobytes() + offsets.tobytes() + config + b"".join(samples)
        (folder / name).write_bytes(data)
        raw = {"basename": name, "bytes": len(data), "hashes": {}}
        shards.append(
            {
                "column_encodings": ["str"], "column_names": ["text"], "column_sizes": [None],
                "compression": None, "format": "mds", "hashes": [], "raw_data": raw,
                "samples": len(samples), "size_limit": 1 << 26, "version": 2, "zip_data": None,
            }
        )  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))
