"""Hugging Face datasets: the files as a stream, with a shuffle buffer of 1,000 rows."""

from collections.abc import Iterator
from pathlib import Path

import datasets
from torch.utils.data import DataLoader

from benchmarks.case import Batch, Case


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    files = sorted(map(str, case.metadataset(folder).glob("*.parquet")))
    stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    stream = stream.shuffle(seed=0, buffer_size=1000).repeat(None).batch(batch_size)
    for batch in DataLoader(stream, batch_size=None, num_workers=num_workers):
        yield {"values": batch[case.part]}
