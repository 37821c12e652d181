"""Ours, where a task encoder makes the tensors of images, as code of the user's would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.case import Batch, Case
from benchmarks.loaders import energy_data_
from energy_data import DefaultTaskEncoder


class Encoder(DefaultTaskEncoder):
    """Decodes the one part of a sample."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def encode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the sample with its part decoded."""
        if isinstance(sample[self.case.part], bytes):
            sample[self.case.part] = self.case.decode(sample[self.case.part])
        return sample


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    return energy_data_.batches(case, folder, batch_size, num_workers, task_encoder=Encoder(case))
