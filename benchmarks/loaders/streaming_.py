"""MosaicML Streaming: its own format MDS, shuffled by its default algorithm."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.case import Batch, Case
from benchmarks.mds import streaming


class Collate:
    """Makes a batch as the case asks for."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __call__(self, samples: list[dict[str, Any]]) -> Batch:
        """Return the batch."""
        values = [self.case.decode(sample["value"]) for sample in samples]
        return self.case.collate([sample["key"] for sample in samples], values)


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    module = streaming()
    module.base.util.clean_stale_shared_memory()
    streams = [
        module.Stream(local=str(path), proportion=weight / sum(case.weights))
        for path, weight in zip(case.mds(folder), case.weights, strict=True)
    ]
    dataset = module.StreamingDataset(streams=streams, batch_size=batch_size, shuffle=True)
    loader = module.StreamingDataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=num_workers,
        drop_last=True,
        collate_fn=Collate(case),
    )
    while True:
        yield from loader
