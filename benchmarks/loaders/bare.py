"""The floor: a table of offsets, one `pread` per sample, and nothing else a loader is for."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.case import Batch, Case


class Samples(IterableDataset):
    """Batches of a fresh permutation of all samples, again and again."""

    def __init__(self, case: Case, folder: Path, batch_size: int) -> None:
        self.case, self.batch_size, self.files = case, batch_size, []
        tables = []
        for tars in case.tars(folder):
            for shard in sorted(tars.glob("*.tar")):
                starts = np.fromfile(f"{shard}.idx", dtype="<u8")
                rows = np.column_stack((starts[:-1], np.diff(starts)))
                tables.append(np.insert(rows, 0, len(self.files), axis=1))
                self.files.append(shard)
        self.table = np.concatenate(tables)

    def __iter__(self) -> Iterator[Batch]:
        worker, decode = get_worker_info(), self.case.decode
        draw = np.random.default_rng(worker.id if worker else 0)
        files = [os.open(path, os.O_RDONLY) for path in self.files]
        while True:
            order = draw.permutation(self.table)
            for start in range(0, len(order) - self.batch_size + 1, self.batch_size):
                keys, values = [], []
                for file, offset, size in order[start : start + self.batch_size].tolist():
                    raw = os.pread(files[file], size, offset)
                    keys.append(raw[: raw.index(b".")].decode())
                    values.append(decode(raw[512 : 512 + int(raw[124:135], 8)]))
                stacked = torch.stack(values) if torch.is_tensor(values[0]) else values
                yield {"keys": keys, "values": stacked}


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    samples = Samples(case, folder, batch_size)
    if num_workers == 0:
        return iter(samples)
    return iter(DataLoader(samples, batch_size=None, num_workers=num_workers, collate_fn=as_it_is))


def as_it_is(batch: Batch) -> Batch:
    return batch
