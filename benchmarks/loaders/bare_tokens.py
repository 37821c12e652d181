"""The floor of tokens: a map of the file, one slice per window, and nothing a loader is for."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.case import Batch, Case


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    tokens = np.memmap(case.files(folder) / "corpus.bin", "<u2", mode="r")
    length, draw = len(tokens) // case.num_samples, np.random.default_rng(0)
    while True:
        order = draw.permutation(case.num_samples) * length
        for start in range(0, case.num_samples - batch_size + 1, batch_size):
            begins = order[start : start + batch_size].tolist()
            rows = [tokens[begin : begin + length].astype(np.int64) for begin in begins]
            yield {"values": torch.from_numpy(np.stack(rows))}
