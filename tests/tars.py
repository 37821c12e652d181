"""Tars for the tests, written by Python's tarfile, and what is in them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.data.tar.source import WebdatasetSource

Files = list[tuple[str, bytes]]


def write_tar(path: Path, files: Files, kind: int = tarfile.USTAR_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        for name, data in files:
            if name.endswith("/"):
                member = tarfile.TarInfo(name)
                member.type = tarfile.DIRTYPE
                tar.addfile(member)
                continue
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def sample_files(number: int, size: int = 40) -> Files:
    """Return the parts of one sample, different for each number."""
    rng = np.random.default_rng(number)
    return [
        (f"d/{number:05d}.txt", (f"text {number} " * size).encode()[:size]),
        (f"d/{number:05d}.json", json.dumps({"number": number}).encode()),
        (f"d/{number:05d}.bin", rng.bytes(size)),
    ]


def expected(number: int, size: int = 40) -> dict[str, Any]:
    parts = {name.partition(".")[2]: data for name, data in sample_files(number, size)}
    return {
        "__key__": f"d/{number:05d}",
        "txt": parts["txt"].decode(),
        "json": {"number": number},
        "bin": parts["bin"],
    }


def bare(sample: Any) -> Any:
    """Return a sample without where it came from."""
    if not isinstance(sample, dict):
        return sample
    return {k: v for k, v in sample.items() if k not in ("__subflavors__", "__sources__")}


def dataset(folder: Path, *, shards: int = 3, samples: int = 20, size: int = 40) -> Path:
    """Write and prepare shards of samples numbered through."""
    for shard in range(shards):
        numbers = range(shard * samples, (shard + 1) * samples)
        files = [part for number in numbers for part in sample_files(number, size)]
        write_tar(folder / f"shard-{shard:03d}.tar", files)
    prepare(folder, workers=1)
    return folder


def one_shard(folder: Path, files: Files, **options: Any) -> WebdatasetSource:
    write_tar(folder / "a.tar", files)
    prepare(folder, force=True, workers=1)
    return open_source(folder, **options)


def read_all(source: WebdatasetSource) -> list[Any]:
    """Read every sample, in one block and one by one, and check that both say the same."""
    numbers = np.arange(len(source))
    # Repeats make the block large enough for the vectorised way.
    block = source.read(np.tile(numbers, 40))[: len(source)]
    singles = [source.read(numbers[n : n + 1])[0] for n in numbers]
    for one, other in zip(block, singles, strict=True):
        assert type(one) is type(other)
        if not isinstance(one, dict):
            assert str(one) == str(other)
        else:
            assert list(one) == list(other)
    return block
