"""What workers hold: hardly more than they share, however long they run and whatever they read."""

from __future__ import annotations

import pytest
from attrs import evolve
from tars import one_shard, sample_files
from trees import batches, samples

from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.references import LeafSpec
from loading import encoders
from loading.encoders import collating
from loading.workers import worker_loader

SHARED_MB = 40  # of torch's objects, which a collection of garbage would write to


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_collection_in_a_worker_copies_nothing_of_what_it_shares(method):
    with worker_loader(collating(encoders.collects), workers=1, start_method=method) as loader:
        assert next(iter(loader)) < SHARED_MB / 4


def test_a_worker_has_as_many_threads_for_200_datasets_as_for_one(tmp_path):
    sources = [one_shard(tmp_path / f"{number}", sample_files(number)) for number in range(200)]
    leaves = [LeafSpec(Leaf(id=f"{n}", source=source)) for n, source in enumerate(sources)]
    counts = set()
    for used in (leaves[:1], leaves):
        tree = batches(samples(BlendSpec(tuple(map(Part, used)))), 50)
        spec = evolve(tree, collate=encoders.tasks)
        with worker_loader(spec, workers=1, start_method="fork") as loader:
            stream = iter(loader)
            counts |= {next(stream) for _ in range(8)}
    assert len(counts) == 1
