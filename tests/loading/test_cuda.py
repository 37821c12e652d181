"""Batches on a real GPU. Skipped where there is none."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch

from energy_data import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

WORKERS = [(0, "fork"), (2, "fork"), (2, "forkserver"), (2, "spawn"), (2, "thread")]


class Encoder(DefaultTaskEncoder):
    """Batches of 4 MiB, filled with the number of their first sample."""

    def batch(self, samples):
        number = int(samples[0]["json"]["n"])
        return {"x": torch.full((1 << 20,), float(number)), "n": number}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("cuda") / "lines.jsonl"
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(1000)))
    return path


def loader_of(path, workers=0, method="fork", **options):
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers, lanes=4),
        batch_size=2,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
    )
    return get_loader(dataset, start_method=method, **options)


def order(path, batches):
    with loader_of(path) as loader:
        return [batch["n"] for batch in islice(loader, batches)]


@pytest.mark.parametrize(("workers", "method"), WORKERS[1:])
def test_batches_of_workers_are_pinned(path, workers, method):
    with loader_of(path, workers, method) as loader:
        given = list(islice(loader, 6))
        assert all(batch["x"].is_pinned() for batch in given)
    assert [batch["n"] for batch in given] == order(path, 6)


@pytest.mark.parametrize(("workers", "method"), WORKERS)
def test_batches_on_a_gpu_are_those_of_the_cpu(path, workers, method):
    with loader_of(path, workers, method, device="cuda") as loader:
        for batch, number in zip(loader, order(path, 40), strict=False):
            torch.cuda._sleep(10_000_000)
            assert batch["x"].device.type == "cuda"
            assert batch["n"] == number
            assert (batch["x"] == number).all()
            del batch


@pytest.mark.parametrize(("workers", "method"), WORKERS)
@pytest.mark.parametrize("device", [None, "cuda"])
@pytest.mark.parametrize("small", [False, True])
def test_a_batch_may_be_dropped_while_it_is_copied(path, workers, method, device, small):
    """The copies wait for work of the GPU, while workers make the next batches."""
    options = {"arena_bytes": 20 << 20} if small else {}
    given = []
    with loader_of(path, workers, method, device=device, **options) as loader:
        for batch in islice(loader, 50):
            torch.cuda._sleep(40_000_000)
            given.append((batch["x"].to("cuda", non_blocking=True) + 0, batch["n"]))
            del batch
    wrong = [number for x, number in given if not bool((x == number).all())]
    assert not wrong, f"{len(wrong)} of {len(given)} batches"


@pytest.mark.parametrize(("workers", "method"), WORKERS)
def test_the_state_is_that_of_the_batch_handed_over(path, workers, method):
    with loader_of(path, workers, method, device="cuda") as loader:
        numbers = [batch["n"] for batch in islice(loader, 7)]
        state = json.loads(json.dumps(loader.state_dict()))
    with loader_of(path, device="cuda") as loader:
        loader.load_state_dict(state)
        numbers += [batch["n"] for batch in islice(loader, 7)]
    assert numbers == order(path, 14)


@pytest.mark.parametrize(("workers", "method"), WORKERS[1:])
def test_a_loader_may_be_closed_while_its_batches_are_copied(path, workers, method):
    given = []
    with loader_of(path, workers, method) as loader:
        for batch in islice(loader, 6):
            torch.cuda._sleep(200_000_000)
            given.append((batch["x"].to("cuda", non_blocking=True), batch["n"]))
            del batch
    assert all(bool((x == number).all()) for x, number in given)


def test_copies_on_another_stream_that_is_current_for_the_next_batch(path):
    given, side = [], torch.cuda.Stream()
    with loader_of(path, 2) as loader, torch.cuda.stream(side):
        for batch in islice(loader, 50):
            torch.cuda._sleep(40_000_000)
            given.append((batch["x"].to("cuda", non_blocking=True), batch["n"]))
            del batch
    torch.cuda.synchronize()
    assert all(bool((x == number).all()) for x, number in given)
