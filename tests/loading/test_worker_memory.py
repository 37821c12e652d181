"""What workers hold: hardly more than they share, however long they run and whatever they read."""

from __future__ import annotations

import mmap
from itertools import islice, pairwise
from statistics import median

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


@pytest.mark.parametrize(
    "make", [encoders.stacked, encoders.zeros_then_rows, encoders.stacked_in_place]
)
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_large_batches_of_user_code_reuse_their_pages(method, make):
    pages, worker, trainer = 40 * (1 << 20) // mmap.PAGESIZE, [], []
    options = {"workers": 1, "start_method": method, "prefetch": 1}
    with worker_loader(collating(encoders.Large(make)), **options) as loader:
        for batch in islice(loader, 21):
            assert batch["rows"].view(-1)[:: mmap.PAGESIZE].all()  # each page is touched
            worker.append(batch["page_faults"])
            trainer.append(encoders.page_faults())
    for counts in (worker, trainer):
        of_batches = [after - before for before, after in pairwise(counts)]
        assert median(of_batches[10:]) < 0.05 * pages


def test_settings_of_the_allocator_by_the_user_remain(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    counts = []
    spec = collating(encoders.Large(encoders.stacked))
    # A forked worker could use what its parent has freed.
    with worker_loader(spec, workers=1, start_method="forkserver", prefetch=1) as loader:
        counts += [batch["page_faults"] for batch in islice(loader, 12)]
    assert counts[-1] - counts[-2] > 5000  # each block is mapped and unmapped


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
