"""The floor of tokens: a map of the file, one slice per window, and nothing a loader is for."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.case import Batch, Case


class Windows(IterableDataset):
    """Batches of a fresh permutation of all windows, again and again."""

    def __init__(self, case: Case, folder: Path, batch_size: int) -> None:
        self.path, self.batch_size, self.count = (
            case.files(folder) / "corpus.bin",
            batch_size,
            case.num_samples,
        )

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        draw = np.random.default_rng(worker.id if worker else 0)
        tokens = np.memmap(self.path, "<u2", mode="r")
        length = len(tokens) // self.count
        while True:
            order = draw.permutation(self.count) * length
            for start in range(0, self.count - self.batch_size + 1, self.batch_size):
                begins = order[start : start + self.batch_size].tolist()
                rows = [tokens[begin : begin + length].astype(np.int64) for begin in begins]
                yield {"values": torch.from_numpy(np.stack(rows))}


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    windows = Windows(case, folder, batch_size)
    if num_workers == 0:
        return iter(windows)
    return iter(DataLoader(windows, batch_size=None, num_workers=num_workers, collate_fn=as_it_is))


def as_it_is(batch: Batch) -> Batch:
    return batch
