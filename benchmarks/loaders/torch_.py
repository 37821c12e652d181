"""torch's DataLoader over a map-style dataset."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

from benchmarks.case import Batch, Case
from benchmarks.map_style import open_samples

EPOCHS = 1_000  # drawn one after another by one sampler, so that workers go on at their ends


class Collate:
    """Makes a batch of pairs."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __call__(self, samples: list[tuple[str, Any]]) -> Batch:
        """Return the batch that the case asks for."""
        keys, values = zip(*samples, strict=True)
        return self.case.collate(list(keys), list(values))


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    samples = open_samples(case, folder)
    sampler = RandomSampler(samples, num_samples=EPOCHS * len(samples))
    if len(case.weights) > 1:
        each = len(samples) // len(case.weights)
        weights = torch.tensor(case.weights, dtype=torch.float64).repeat_interleave(each)
        sampler = WeightedRandomSampler(weights, num_samples=10 * len(samples))
    loader = DataLoader(
        samples,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=num_workers,
        collate_fn=Collate(case),
        persistent_workers=num_workers > 0,
    )
    while True:
        yield from loader
