"""litdata's TokensLoader: blocks of one length of its own chunks, shuffled."""

from collections.abc import Iterator
from pathlib import Path

from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

from benchmarks.case import Batch, Case


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    length = len(case.write(0)) // 2
    dataset = StreamingDataset(
        str(case.files(folder) / "litdata"),
        item_loader=TokensLoader(block_size=length),
        shuffle=True,
    )
    loader = StreamingDataLoader(
        dataset, batch_size=batch_size, num_workers=num_workers, drop_last=True
    )
    while True:
        for batch in loader:
            yield {"values": batch.long()}
