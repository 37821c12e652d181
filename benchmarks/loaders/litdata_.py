"""litdata: its own format, decoded beforehand where that saves work, shuffled by chunks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset

from benchmarks.case import Batch, Case

# As many samples decoded together as are shuffled together. The default decodes 32 for each one
# of raw images (13 CPU seconds in place of 1.4), and is no faster for text.
DECODED_TOGETHER = 256


class Decode:
    """Decodes the bytes of a sample."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the sample, decoded."""
        return {"keys": sample["keys"], "values": self.case.decode(sample["values"])}


class Collate(Decode):
    """Makes a batch as the case asks for."""

    def __call__(self, samples: list[dict[str, Any]]) -> Batch:
        """Return the batch."""
        return self.case.collate(
            [sample["keys"] for sample in samples], [sample["values"] for sample in samples]
        )


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    options = (
        {"transform": Decode(case)} if case.decode_by_user else {"batch_decode": DECODED_TOGETHER}
    )
    parts = [StreamingDataset(str(path), shuffle=True, **options) for path in case.litdata(folder)]
    dataset = parts[0]
    if len(parts) > 1:
        dataset = CombinedStreamingDataset(parts, weights=case.weights, iterate_over_all=False)
    loader = StreamingDataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=num_workers,
        drop_last=True,
        collate_fn=Collate(case) if case.decode_by_user else None,
    )
    while True:  # an epoch ends; that of a blend with its first exhausted dataset
        for batch in loader:
            yield batch if isinstance(batch, dict) else {"values": batch}
