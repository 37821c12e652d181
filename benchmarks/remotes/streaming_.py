"""MosaicML Streaming, with its shards of 64 MB."""

from pathlib import Path
from typing import Any

from benchmarks.case import Case
from benchmarks.loaders.streaming_ import Collate
from benchmarks.mds import streaming


def open_loader(case: Case, url: str, cache: Path, num_workers: int) -> Any:
    module = streaming()
    module.base.util.clean_stale_shared_memory()
    dataset = module.StreamingDataset(
        remote=url, local=str(cache), batch_size=case.batch_size, shuffle=True
    )
    return module.StreamingDataLoader(
        dataset,
        batch_size=case.batch_size,
        num_workers=num_workers,
        drop_last=True,
        collate_fn=Collate(case),
    )
