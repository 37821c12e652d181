"""Ours, with the same settings as Energon."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.case import Batch, Case
from energy_data import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset
from energy_data.loader.crew import StartMethod


class Encoder(DefaultTaskEncoder):
    """Makes the tensor of an image, which to us is a part of unknown type."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def encode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the sample with its part decoded."""
        sample[self.case.part] = self.case.decode(sample[self.case.part])
        return sample


def batches(
    case: Case,
    folder: Path,
    batch_size: int,
    num_workers: int,
    start_method: StartMethod = "forkserver",
) -> Iterator[Batch]:
    dataset = get_train_dataset(
        case.metadataset(folder),
        batch_size=batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        **({} if case.part == "txt" else {"task_encoder": Encoder(case)}),  # text we decode unasked
    )
    for batch in get_loader(dataset, start_method=start_method):
        yield {"keys": batch["__key__"], "values": batch[case.part]}
