"""Worker threads: the stream of processes, and the trainer's own state left alone."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from itertools import islice
from pathlib import Path

import pytest
import torch
from trees import batches, finite, leaf, samples

from energy_data.core.user_call import ErrorPolicy
from energy_data.errors import SpecError
from energy_data.loading.workers import worker
from energy_data.loading.workers.protocol import WorkerError
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.references import LeafSpec
from energy_data.tasks.functions import stateless
from energy_data.testing import NumberSource
from loading import encoders
from loading.encoders import collating, encoding, tensors
from loading.own_time import until
from loading.workers import QUICK, crew, descriptors, worker_loader
from loading.workers import threads as worker_threads

US = {os.getpid()}


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No thread outlives its test."""
    yield
    until(lambda: not worker_threads(), "a thread is left", US, limit_s=5)


@stateless(restore_seeds=True)
def augmented(sample):
    return {**sample, "__key__": (sample["__key__"], random.random())}


@stateless(restore_seeds=True)
def in_parts(sample):
    for _ in range(2):
        yield {**sample, "__key__": (sample["__key__"], random.random())}


AUGMENTED = encoding(augmented)
TOLERANT = encoding(augmented, on_failure=ErrorPolicy())
PARTS = batches(EncodeSpec(of=samples(leaf("x", 40)), encode=in_parts, yields="several"), 2)


@pytest.mark.parametrize("spec", [AUGMENTED, TOLERANT, PARTS])
def test_a_function_that_seeds_the_global_generators_is_an_error_with_advice(spec):
    before = random.getstate()
    with (
        worker_loader(spec, start_method="thread") as loader,
        pytest.raises(SpecError, match=r"restore_seeds: .*sample_rng\(\).*='forkserver'"),
    ):
        next(iter(loader))
    assert random.getstate() == before


GATE = threading.Event()


def hangs(sample):
    if encoders.is_poison(sample):
        GATE.wait(60)
    return sample


@pytest.fixture
def gate():
    GATE.clear()
    yield GATE
    GATE.set()


def error_of(loader, kind):
    with pytest.raises(kind) as caught:
        list(islice(loader, 60))
    return caught.value


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (2, 2), (3, 8)])
def test_a_sample_that_hangs_is_an_error_with_sample_and_stack_and_can_be_made_later(
    gate, workers, prefetch
):
    spec = encoding(hangs)
    loader = worker_loader(
        spec, workers=workers, prefetch=prefetch, start_method="thread", timeout_s=1.5
    )
    began = time.monotonic()
    error = error_of(loader, WorkerError)
    assert time.monotonic() - began < 5 + 2
    assert "gave nothing for 1.5 s" in str(error)
    assert "working on dataset x, shard memory, key x/17, sample 17" in str(error)
    assert "in hangs" in str(error)
    assert "in _encode" in str(error)
    assert worker.__file__ not in str(error)
    at = -1 if loader.last_batch is None else loader.last_batch
    gate.set()
    again = list(islice(loader, 10))
    loader.close()
    expected = list(islice(worker_loader(spec, workers=0), at + 11))
    assert again == expected[at + 1 :]


def test_a_thread_that_hangs_holds_up_nobody_at_the_end(gate, caplog):
    loader = worker_loader(encoding(hangs), workers=2, start_method="thread", prefetch=8)
    list(islice(loader, 2))
    until(lambda: any(not w.waiting for w in crew(loader)), "nobody works", US)
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 5
    if worker_threads():  # the one that has come to the sample
        assert "is still at work, and ends after its batch" in caplog.text


def leaves(sample):
    if encoders.is_poison(sample):
        raise SystemExit(5)
    return sample


def test_a_function_that_wants_to_leave_is_heard_when_its_batch_is_due():
    loader = worker_loader(encoding(leaves), start_method="thread", prefetch=8)
    alone = worker_loader(encoding(leaves), workers=0)
    for one in (loader, alone):
        assert error_of(one, SystemExit).code == 5
    assert loader.last_batch == alone.last_batch
    loader.close()


class OfOneThread:
    """Must not be shared between threads."""

    owner: int | None = None

    def check(self) -> None:
        self.owner = self.owner or threading.get_ident()
        assert self.owner == threading.get_ident()


class OwnEncoder(OfOneThread):
    def __call__(self, sample):
        self.check()
        return {**sample, "__key__": (sample["__key__"], self.owner)}


class OwnSource(OfOneThread, NumberSource):
    def read(self, indices):
        self.check()
        time.sleep(0.001)
        return super().read(indices)


def test_each_thread_has_a_task_encoder_and_sources_of_its_own():
    read = samples(LeafSpec(Leaf(id="x", source=OwnSource(40, "x"))))
    spec = batches(EncodeSpec(of=read, encode=OwnEncoder()), 2)
    with worker_loader(spec, workers=3, start_method="thread") as loader:
        owners = {key[1] for batch in islice(loader, 30) for key in batch}
    assert len(owners) == 3
    assert threading.get_ident() not in owners


def test_what_cannot_be_pickled_on_its_way_back_is_handed_over_as_it_is():
    with worker_loader(collating(encoders.gives_lambda), start_method="thread") as loader:
        assert [sample["__key__"] for sample in next(iter(loader))()]


class NotMadeAgain:
    def __call__(self, sample):
        return sample

    def __setstate__(self, state):
        raise ValueError("as told")

    def __getstate__(self):
        return {"some": 1}


def test_a_dataset_that_cannot_be_made_again_is_an_error_that_says_so():
    loader = worker_loader(encoding(NotMadeAgain()), start_method="thread")
    for _ in range(2):
        assert "cannot be made in the worker from its pickled form (as told)" in str(
            error_of(loader, Exception)
        )
    loader.close()


class LeavesWhenMade(NotMadeAgain):
    def __setstate__(self, state):
        raise SystemExit(3)


class CountsNothing(NumberSource):
    """What it has read cannot be told in a worker."""

    @property
    def bytes_read(self):
        if worker_threads() and threading.current_thread() in worker_threads():
            raise KeyError("as told")

    @bytes_read.setter
    def bytes_read(self, count):
        pass


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (encoding(LeavesWhenMade()), SystemExit),
        (batches(samples(LeafSpec(Leaf(id="x", source=CountsNothing(40, "x")))), 2), KeyError),
    ],
)
def test_what_would_end_a_thread_is_raised_in_the_trainer(spec, kind):
    loader = worker_loader(spec, start_method="thread")
    for _ in range(2):
        error_of(loader, kind)
    loader.close()


def test_threads_change_neither_the_number_of_torchs_threads_nor_the_environment():
    before = torch.get_num_threads(), dict(os.environ)
    with worker_loader(start_method="thread") as loader:
        next(iter(loader))
        assert {one.name for one in worker_threads()} == {
            "energy_data worker 0",
            "energy_data worker 1",
        }
        assert all(one.daemon for one in worker_threads())
    assert (torch.get_num_threads(), dict(os.environ)) == before


def test_a_loader_that_nobody_has_any_more_ends_its_threads():
    loader = worker_loader(encoding(encoders.plain), start_method="thread", prefetch=8)
    next(iter(loader))
    assert len(worker_threads()) == 2
    del loader
    gc.collect()
    until(lambda: not worker_threads(), "they go on", US, limit_s=5)


def own_mb() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1024


@pytest.mark.parametrize("starts", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_starts_and_ends_leave_no_thread_descriptor_or_memory(starts):
    spec = batches(samples(leaf("x", 40)), 2)
    sizes = {}
    for n in range(starts + 1):
        loader = worker_loader(spec, workers=2, start_method="thread")
        next(iter(loader))
        if n % 3:
            loader.close()
        del loader
        if n in (100, starts):
            gc.collect()
            until(lambda: not worker_threads(), "they go on", US, limit_s=5)
            sizes[n] = descriptors(), own_mb()
    assert sizes[starts][0] == sizes[100][0]
    assert sizes[starts][1] - sizes[100][1] < 4


@pytest.mark.parametrize("workers", [0, 2])
def test_the_numbers_for_people_are_those_without_threads(workers):
    spec = batches(EncodeSpec(of=samples(leaf("x", 40, frozenset({3}))), encode=encoders.plain), 2)
    with worker_loader(spec, workers=workers, start_method="thread") as loader:
        given = list(islice(loader, 50))
        stats = loader.stats()
    assert stats.batches == len(given) == 50
    assert stats.slots_in_use == 0
    assert sum(one.drawn for one in stats.leaves.values()) == 100 + sum(stats.skipped.values())
    assert stats.skipped["bad samples"]
    assert stats.seconds["the task encoder, encoding samples"] > 0


def tensors_of(spec):
    return BatchSpec(of=spec.of, batch_size=4, collate=tensors, aligned=spec.aligned)


@pytest.mark.parametrize("method", QUICK)
@pytest.mark.parametrize("even_batches", ["drop", "short", "pad"])
def test_passes_of_two_ranks_end_as_without_workers(method, even_batches):
    def passes(workers):
        loaders = [
            worker_loader(
                tensors_of(finite(leaf("x", 23), 4)),
                *(workers, rank, 2),
                start_method=method,
                from_start=True,
                even_batches=even_batches,
            )
            for rank in range(2)
        ]
        given = [[[one["n"].tolist() for one in loader] for _ in range(2)] for loader in loaders]
        for loader in loaders:
            loader.close()
        return given

    assert passes(2) == passes(0)
