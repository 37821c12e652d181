"""litdata: its own format, decoded and stored beforehand, shuffled by chunks and within them."""

from collections.abc import Iterator
from pathlib import Path

from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset

from benchmarks.case import Batch, Case

# As many samples decoded together as are shuffled together. The default decodes 32 for each one
# of raw images (13 CPU seconds in place of 1.4), and is no faster for text.
DECODED_TOGETHER = 256


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    parts = [
        StreamingDataset(str(path), shuffle=True, batch_decode=DECODED_TOGETHER)
        for path in case.litdata(folder)
    ]
    dataset = parts[0]
    if len(parts) > 1:
        dataset = CombinedStreamingDataset(parts, weights=case.weights, iterate_over_all=False)
    loader = StreamingDataLoader(
        dataset, batch_size=batch_size, num_workers=num_workers, drop_last=True
    )
    while True:  # an epoch ends; that of a blend with its first exhausted dataset
        for batch in loader:
            yield batch if isinstance(batch, dict) else {"values": batch}
