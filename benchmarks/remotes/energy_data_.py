"""Ours."""

import os
from pathlib import Path
from typing import Any

from benchmarks.case import Case


def open_loader(case: Case, url: str, cache: Path, num_workers: int) -> Any:
    os.environ["ENERGY_DATA_CACHE"] = str(cache)
    from energy_data import RawTensor, WorkerConfig, get_loader, get_train_dataset

    dataset = get_train_dataset(
        url,
        batch_size=case.batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=case.neighbours,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        decoders={case.part: RawTensor(*case.raw_tensor)} if case.raw_tensor else None,
    )
    return get_loader(dataset)
