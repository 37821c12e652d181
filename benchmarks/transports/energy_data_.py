"""Ours."""

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.parcels import Producer
from energy_data import WorkerConfig, get_loader
from energy_data.loading.dataset import SavableDataset
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import LeafSpec, ReferencesSpec
from energy_data.testing import NumberSource


class Collate:
    """Gives the batch, whatever the samples."""

    def __init__(self, kind: str) -> None:
        self.produce = Producer(kind, torch.from_numpy)

    def __call__(self, samples: list[Any]) -> Any:  # noqa: D102
        return self.produce()


def batches(kind: str, num_workers: int) -> Iterator[Any]:
    references = ReferencesSpec(of=LeafSpec(Leaf(id="numbers", source=NumberSource(1_000_000))))
    spec = BatchSpec(of=ReadSpec(of=references), batch_size=1, collate=Collate(kind))
    dataset: SavableDataset[Any] = SavableDataset(
        spec=spec, worker_config=WorkerConfig(0, 1, num_workers)
    )
    return iter(get_loader(dataset))
