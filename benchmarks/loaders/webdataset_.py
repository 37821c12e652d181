"""webdataset: the usual pipeline, with a shuffle buffer of 1,000 samples."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import webdataset as wds

from benchmarks.case import Batch, Case


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    shards = [sorted(map(str, tars.glob("*.tar"))) for tars in case.tars(folder)]
    # A dataset with fewer shards than workers is read whole by each of them.
    splitters = [wds.split_by_worker if len(urls) >= num_workers else None for urls in shards]
    parts = [
        wds.WebDataset(urls, shardshuffle=len(urls), workersplitter=splitter).repeat()
        for urls, splitter in zip(shards, splitters, strict=True)
    ]
    samples = parts[0] if len(parts) == 1 else wds.RandomMix(parts, case.weights)

    def collate(pairs: list[tuple[str, Any]]) -> Batch:
        keys, values = zip(*pairs, strict=True)
        return case.collate(list(keys), list(values))

    dataset = (
        wds.DataPipeline(samples, wds.shuffle(min(1000, case.num_samples // 2)))
        .compose(wds.to_tuple("__key__", case.part), wds.map_tuple(str, case.decode))
        .compose(wds.batched(batch_size, collation_fn=collate, partial=False))
    )
    yield from wds.WebLoader(dataset, batch_size=None, num_workers=num_workers)
