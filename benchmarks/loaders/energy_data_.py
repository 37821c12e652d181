"""Ours, with the same settings as Energon."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.case import Batch, Case
from energy_data import DefaultTaskEncoder, RawTensor, WorkerConfig, get_loader, get_train_dataset
from energy_data.loading.workers.pool import StartMethod
from energy_data.nodes.packing import Joined, Packing


class Encoder(DefaultTaskEncoder):
    """Decodes the one part of a sample, and batches as the case does."""

    decoder = None

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def encode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the sample with its part decoded."""
        sample[self.case.part] = self.case.decode(sample[self.case.part])
        return sample


class Batching(Encoder):
    """Makes batches by the user's own function."""

    def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the keys, and what the function makes of the values."""
        values = [sample[self.case.part] for sample in samples]
        keys = [sample["__key__"] for sample in samples]
        return {"__key__": keys, self.case.part: self.case.batch(values)}


class Packs(Encoder):
    """Packs tokens."""

    def encode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the tokens of a sample."""
        return {"tokens": self.case.decode(sample[self.case.part])}

    @property
    def packing(self) -> Packing:
        """Packs of one length."""
        length = self.case.pack_length
        return Packing(limits={"tokens": length}, pack=Joined("tokens", length))


def encoder(case: Case, decodes: bool) -> Encoder | None:
    """Return what the library does not do by itself."""
    if case.pack_length:
        return Packs(case)
    if case.batch is not None:
        return Batching(case)
    return Encoder(case) if decodes else None


def batches(
    case: Case,
    folder: Path,
    batch_size: int,
    num_workers: int,
    start_method: StartMethod = "fork",
    decodes: bool = False,
) -> Iterator[Batch]:
    task = encoder(case, decodes or (case.decode_by_user and case.raw_tensor is None))
    decoders = {case.part: RawTensor(*case.raw_tensor)} if case.raw_tensor and not task else None
    dataset = get_train_dataset(
        case.metadataset(folder),
        batch_size=batch_size // case.documents_per_pack,
        packing_buffer_size=batch_size if case.pack_length else None,
        shuffle_buffer_size=100,
        max_samples_per_sequence=case.neighbours,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        task_encoder=task,
        decoders=decoders,
    )
    for batch in get_loader(dataset, start_method=start_method):
        if case.pack_length:
            yield {"values": batch["tokens"], "count": sum(batch["__tokens__"])}
        else:
            yield {"keys": batch["__key__"], "values": batch[case.part]}
