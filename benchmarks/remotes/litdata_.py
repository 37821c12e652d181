"""litdata, with its chunks of 64 MB."""

from pathlib import Path
from typing import Any

from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming import downloader

from benchmarks.case import Case
from benchmarks.loaders.litdata_ import DECODED_TOGETHER

downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no option for a local server


def open_loader(case: Case, url: str, cache: Path, num_workers: int) -> Any:
    dataset = StreamingDataset(
        url, cache_dir=str(cache), shuffle=True, batch_decode=DECODED_TOGETHER
    )
    return StreamingDataLoader(
        dataset, batch_size=case.batch_size, num_workers=num_workers, drop_last=True
    )
