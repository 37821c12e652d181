"""Grain over a map of the file, shuffled over all of it."""

from collections.abc import Iterator
from pathlib import Path

import grain.python as grain
import numpy as np
import torch

from benchmarks.case import Batch, Case


class Windows:
    """The windows of a file, by number."""

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count
        self.tokens = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> np.ndarray:
        if self.tokens is None:
            self.tokens = np.memmap(self.path, "<u2", mode="r").reshape(self.count, -1)
        return self.tokens[number].astype(np.int64)


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    dataset = grain.MapDataset.source(Windows(case.files(folder) / "corpus.bin", case.num_samples))
    stream = dataset.seed(0).shuffle().repeat().batch(batch_size, drop_remainder=True)
    stream = stream.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    if num_workers:
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=num_workers))
    for batch in stream:
        yield {"values": torch.from_numpy(batch)}
