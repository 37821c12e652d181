"""The floor for Parquet: pyarrow reads one row group after another, in order, into dicts."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.case import Batch, Case


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    rows = []
    while True:
        for path in sorted(case.metadataset(folder).glob("*.parquet")):
            file = pq.ParquetFile(path, pre_buffer=False)
            for group in range(file.num_row_groups):
                rows += file.read_row_group(group, use_threads=False).to_pylist()
                while len(rows) >= batch_size:
                    batch, rows = rows[:batch_size], rows[batch_size:]
                    yield {"values": [row[case.part] for row in batch], "in_order": True}
