"""What a case is: one kind of data, what is made of it, and what its batches must be."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import packing

# {"values": a tensor or a list}, "keys": a list of str where values do not tell their number;
# of packs, "count": how many tokens they have.
Batch = Mapping[str, Any]

OURS = ("energy_data_", "energy_data_forkserver", "energy_data_threads")
TAR_LOADERS = (
    *OURS, "bare", "energon", "energy_data_encoder", "energy_data_typed", "grain_", "litdata_",
    "streaming_", "torch_", "webdataset_",
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
    warm_up: int | None = None  # samples before those that are measured; None: a few
    weights: tuple[int, ...] = (1,)  # one per dataset
    neighbours: int = 100  # samples that ours reads together, as Energon does
    step_ms: float = 20  # how long the trainer is busy with a batch, where waiting is measured
    raw_tensor: tuple[str, tuple[int, ...]] | None = None  # dtype and shape, if a part is no more
    decode_by_user: bool = False  # whether ours needs `decode` too: it is no text or raw tensor
    batch: Callable[[list[Any]], Any] | None = None  # the user's own; None: that of each loader
    # Tokens of a pack, where documents are packed. `batch_size` is then a number of documents,
    # the buffer that packs are chosen from.
    pack_length: int | None = None
    documents_per_pack: int = 1  # about
    # Writes files of another format to a folder; None: tars, and what is made of them.
    write_files: Callable[[Path], None] | None = None
    loaders: tuple[str, ...] = TAR_LOADERS
    # How many times our CPU seconds a loader must need: by loader.
    must: Mapping[str, float] = field(default_factory=dict)

    def key(self, number: int) -> str:
        """Return the key of a sample."""
        return f"{number:09d}"

    def collate(self, keys: list[str], values: list[Any]) -> Batch:
        """Return decoded samples as a batch, for loaders that ask for a function."""
        if self.pack_length:
            packs = self.choose([len(value) for value in values])
            return self.join([[values[i] for i in pack] for pack in packs])
        if self.batch is not None:
            return {"keys": keys, "values": self.batch(values)}
        return {
            "keys": keys,
            "values": torch.stack(values) if torch.is_tensor(values[0]) else values,
        }

    def choose(self, lengths: list[int]) -> list[list[int]]:
        """Return the numbers of the documents of each pack."""
        return packing.choose(lengths, self.pack_length)

    def join(self, packs: list[list[torch.Tensor]]) -> Batch:
        """Return packs of documents as a batch."""
        return packing.join(packs, self.pack_length)

    def count(self, batch: Batch) -> int:
        """Return how many samples a batch has, or tokens if it has packs."""
        return int(batch["count"]) if self.pack_length else self.batch_size

    def tars(self, folder: Path) -> list[Path]:
        """Return the folders of tar shards, one per dataset."""
        return self._folders(folder / "tars")

    def litdata(self, folder: Path) -> list[Path]:
        """Return the folders of litdata's chunks, one per dataset."""
        return self._folders(folder / "litdata")

    def mds(self, folder: Path) -> list[Path]:
        """Return the folders of Streaming's shards, one per dataset."""
        return self._folders(folder / "mds")

    def _folders(self, folder: Path) -> list[Path]:
        return [folder / f"{i:03d}" for i in range(len(self.weights))]

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
