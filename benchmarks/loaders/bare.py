"""The floor: samples of a fresh permutation, one by one, and nothing else a loader is for."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.case import Batch, Case
from benchmarks.map_style import open_samples


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    samples, draw = open_samples(case, folder), np.random.default_rng(0)
    while True:
        order = draw.permutation(len(samples)).tolist()
        for start in range(0, len(order) - batch_size + 1, batch_size):
            chosen = [samples[number] for number in order[start : start + batch_size]]
            yield case.collate([key for key, _ in chosen], [value for _, value in chosen])
