"""NVIDIA Megatron-Energon: its savable loader over a dataset that gives whole batches."""

from collections.abc import Iterator
from typing import Any

import torch
from megatron.energon import SavableDataset, WorkerConfig, get_savable_loader

from benchmarks.parcels import Producer


class Batches(SavableDataset):
    """Batches without end; its place is how many there were."""

    _savable_fields = ("_count",)

    def __init__(self, kind: str, worker_config: WorkerConfig) -> None:
        super().__init__(worker_config=worker_config)
        self.produce = Producer(kind, torch.from_numpy)
        self.reset_state_own()

    def reset_state_own(self) -> None:  # noqa: D102
        self._count = 0

    def len_worker(self, worker_idx: int | None = None) -> int:  # noqa: D102
        return 1_000_000_000

    def worker_has_samples(self) -> bool:  # noqa: D102
        return True

    def config(self) -> dict[str, Any]:  # noqa: D102
        return {"type": "Batches"}

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._count += 1
            yield {**self.produce(), "__restore_key__": ("Batches", self._count)}


def batches(kind: str, num_workers: int) -> Iterator[Any]:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    return iter(get_savable_loader(Batches(kind, config)))
