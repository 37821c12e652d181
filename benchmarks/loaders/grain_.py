"""Google Grain over a map-style dataset, shuffled over all of it."""

from collections.abc import Iterator
from pathlib import Path

import grain.python as grain

from benchmarks.case import Batch, Case
from benchmarks.loaders.torch_ import Collate
from benchmarks.map_style import open_samples


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    dataset = grain.MapDataset.source(open_samples(case, folder)).seed(0).shuffle().repeat()
    dataset = dataset.batch(batch_size, drop_remainder=True, batch_fn=Collate(case))
    stream = dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    if num_workers:
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=num_workers))
    yield from stream
