"""What a case is: one kind of data, and what its batches must be."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Batch = Mapping[str, Any]  # {"keys": list[str], "values": list[str]} or {"values": Tensor}


TAR_LOADERS = (
    "bare", "energon", "energy_data_", "energy_data_encoder", "energy_data_fork",
    "energy_data_threads", "litdata_", "webdataset_",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of data, the same for every loader, each in the loader's own format."""

    name: str
    part: str  # the one part of a sample; in a tar the ending of its file
    write: Callable[[int], bytes]  # number of a sample -> its bytes
    decode: Callable[[bytes], Any]  # bytes -> str or tensor
    check: Callable[[Batch], None]  # raises if a batch is not as asked
    batch_size: int
    num_samples: int  # over all datasets; also how many are measured if nothing else is asked
    samples_per_shard: int
    weights: tuple[int, ...] = (1,)  # one per dataset
    neighbours: int = 100  # samples that ours reads together, as Energon does
    raw_tensor: tuple[str, tuple[int, ...]] | None = None  # dtype and shape, if a part is no more
    # Writes files of another format to a folder; None: tars, and what is made of them.
    write_files: Callable[[Path], None] | None = None
    loaders: tuple[str, ...] = TAR_LOADERS
    # CPU seconds per 100,000, by number of workers: what ours must need, and what others needed
    # on the machine that this was set on, by loader. Seconds of another machine say little.
    must: Mapping[int, float] = field(default_factory=dict)
    others: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    def key(self, number: int) -> str:
        """Return the key of a sample."""
        return f"{number:09d}"

    def tars(self, folder: Path) -> list[Path]:
        """Return the folders of tar shards, one per dataset."""
        return [folder / "tars" / f"{i:03d}" for i in range(len(self.weights))]

    def litdata(self, folder: Path) -> list[Path]:
        """Return the folders of litdata's chunks, one per dataset."""
        return [folder / "litdata" / f"{i:03d}" for i in range(len(self.weights))]

    def files(self, folder: Path) -> Path:
        """Return the folder of what `write_files` writes."""
        return folder / "files"

    def metadataset(self, folder: Path) -> Path:
        """Return what Energon and we are given: a dataset, or the YAML that blends several."""
        if self.write_files is not None:
            yaml = self.files(folder) / "metadataset.yaml"
            return yaml if yaml.is_file() else yaml.parent
        return folder / "metadataset.yaml" if len(self.weights) > 1 else self.tars(folder)[0]


def find_case(name: str) -> Case:
    """Return the case of `cases/<name>.py`."""
    case = importlib.import_module(f"benchmarks.cases.{name}").CASE
    assert isinstance(case, Case)
    assert case.name == name
    return case
