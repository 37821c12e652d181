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

        @stateless
        def cook(sample: dict[str, Any]) -> BenchSample:
            return BenchSample(**basic_sample_keys(sample), value=case.decode(sample[case.part]))

        self.cookers = [Cooker(cook)]


def batches(case: Case, folder: Path, batch_size: int, num_workers: int) -> Iterator[Batch]:
    dataset = get_train_dataset(
        case.metadataset(folder),
        batch_size=batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        task_encoder=Encoder(case),
    )
    for batch in get_savable_loader(dataset):
        yield {"keys": batch.__key__, "values": batch.value}
