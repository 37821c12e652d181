"""Worker threads beside a GPU: what they make is pinned, by a fake in its place."""

from __future__ import annotations

import threading
from itertools import islice

import pytest

from energy_data.loading import factory
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.factory import host_of
from energy_data.loading.loader import Loader
from energy_data.loading.transport.device import Cuda
from energy_data.loading.workers.pool import PoolOptions
from loading.encoders import collating, tensors
from loading.workers import worker_loader


class FakeCuda(Cuda):
    """Says that there is a GPU; what it pins is another tensor."""

    def __init__(self, pinned):
        self.ours = pinned

    def available(self):
        return True

    def pinner(self):
        assert threading.current_thread() is threading.main_thread()  # whose GPU it is

        def pinned(tensor):
            assert threading.current_thread().name.startswith("energy_data worker")
            self.ours.append(tensor.clone())
            return self.ours[-1]

        return pinned


@pytest.mark.parametrize(("pin_memory", "pins"), [("auto", True), (True, True), (False, False)])
def test_batches_of_threads_are_copied_to_pinned_memory_where_there_is_a_gpu(
    monkeypatch, pin_memory, pins
):
    pinned = []
    monkeypatch.setattr(factory, "Cuda", lambda: FakeCuda(pinned))
    config = worker_loader(collating(tensors)).dataset.worker_config
    dataset = SavableDataset(spec=collating(tensors), worker_config=config)
    host = host_of(dataset, PoolOptions(start_method="thread"), pin_memory=pin_memory)
    with Loader(dataset, host) as loader:
        given = list(islice(loader, 4))
    assert all(any(batch["n"] is one for one in pinned) == pins for batch in given)
    expected = list(islice(worker_loader(collating(tensors), workers=0), 4))
    assert [one["n"].tolist() for one in given] == [one["n"].tolist() for one in expected]
