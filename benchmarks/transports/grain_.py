"""Google Grain: numpy arrays, which it moves to shared memory (tensors it would pickle)."""

from collections.abc import Iterator
from typing import Any

import grain
import numpy as np

from benchmarks.parcels import Producer


class Make(grain.transforms.Map):
    """Gives the batch, whatever the number."""

    def __init__(self, kind: str) -> None:
        self.produce = Producer(kind, np.asarray)

    def map(self, element: int) -> Any:  # noqa: D102
        return self.produce()


def batches(kind: str, num_workers: int) -> Iterator[Any]:
    dataset = grain.MapDataset.range(100_000_000).map(Make(kind)).to_iter_dataset()
    options = grain.multiprocessing.MultiprocessingOptions(
        num_workers=num_workers, per_worker_buffer_size=2
    )
    return iter(dataset.mp_prefetch(options))
