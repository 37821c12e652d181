"""torch's DataLoader over a dataset that gives whole batches."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.parcels import Producer


class Batches(IterableDataset):
    """Batches without end."""

    def __init__(self, kind: str) -> None:
        self.produce = Producer(kind, torch.from_numpy)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.produce()


def batches(kind: str, num_workers: int) -> Iterator[Any]:
    return iter(DataLoader(Batches(kind), batch_size=None, num_workers=num_workers))
