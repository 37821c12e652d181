"""NVIDIA Megatron-Energon: crude samples with a cooker, and a loader that can be saved."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    stateless,
)

from benchmarks.case import Batch, Case


@edataclass
class BenchSample(Sample):
    """A sample with the one part that the case has."""

    value: Any


class Encoder(DefaultTaskEncoder):
    """Decodes in the cooker, with the default decoder off: the quicker of the two ways."""

    decoder = None

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

        @stateless
        def cook(sample: dict[str, Any]) -> BenchSample:
            return BenchSample(**basic_sample_keys(sample), value=case.decode(sample[case.part]))

        self.cookers = [Cooker(cook)]


class Batching(Encoder):
    """Makes batches by the user's own function."""

    @stateless
    def batch(self, samples: list[BenchSample]) -> Batch:
        """Return the keys, and what the function makes of the values."""
        keys = [sample.__key__ for sample in samples]
        return self.case.collate(keys, [sample.value for sample in samples])


class Packs(Encoder):
    """Packs the documents of a buffer, and batches packs."""

    def select_samples_to_pack(self, samples: list[BenchSample]) -> list[list[BenchSample]]:
        """Return the samples of each pack."""
        packs = self.case.choose([len(sample.value) for sample in samples])
        return [[samples[i] for i in pack] for pack in packs]

    @stateless
    def pack_selected_samples(self, samples: list[BenchSample]) -> BenchSample:
        """Return the tokens of a pack; the batch makes them as long as each other."""
        return BenchSample.derive_from(samples[0], value=[sample.value for sample in samples])

    @stateless
    def batch(self, samples: list[BenchSample]) -> Batch:
        """Return the packs as one tensor."""
        return self.case.join([pack.value for pack in samples])


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    kind = Packs if case.pack_length else Batching if case.batch else Encoder
    dataset = get_train_dataset(
        case.metadataset(folder),
        batch_size=batch_size // case.documents_per_pack,
        packing_buffer_size=batch_size if case.pack_length else None,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        task_encoder=kind(case),
    )
    for batch in get_savable_loader(dataset):
        yield {"keys": batch.__key__, "values": batch.value} if kind is Encoder else batch
