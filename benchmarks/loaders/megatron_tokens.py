"""Megatron's IndexedDataset: one sequence per window, drawn by torch's loader."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset
from torch.utils.data import DataLoader, Dataset

from benchmarks.case import Batch, Case


class Windows(Dataset):
    """Windows as int64, as Megatron's own datasets over it return them."""

    def __init__(self, prefix: str) -> None:
        self.indexed = IndexedDataset(prefix, mmap=True)

    def __len__(self) -> int:
        return len(self.indexed)

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.from_numpy(self.indexed[number].astype(np.int64))


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    windows = Windows(str(case.files(folder) / "corpus"))
    loader = DataLoader(
        windows, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=num_workers
    )
    while True:
        for batch in loader:
            yield {"values": batch}
