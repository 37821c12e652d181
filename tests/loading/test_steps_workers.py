"""Steps over worker processes: the same, however little memory there is for batches."""

from __future__ import annotations

import json
import os
import signal
from itertools import islice

import pytest
import torch
from torch.distributed import HashStore

from energy_data.core.worker_config import WorkerConfig
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.lanes import InProcess
from energy_data.loading.loader import Loader
from energy_data.loading.steps.exchange import Exchange
from energy_data.loading.steps.grouper import StepGrouper
from energy_data.loading.transport.arena import ArenaFullError
from energy_data.loading.transport.device import OnDevice
from energy_data.loading.workers.pool import PoolOptions, WorkerPool
from energy_data.order.step_rules import DocsPerStep
from loading.steps import STREAM, WAIT_S, plain, stream, together, varying
from loading.test_device import DEVICE, FakeCuda
from loading.workers import processes


def large(batch):
    """A batch of about 300 KB."""
    numbers = torch.tensor([sample["number"] for sample in batch])
    return {
        "__key__": [sample["__key__"] for sample in batch],
        "x": numbers.repeat_interleave(12_000),
    }


def loader_of(spec, workers=2, arena_bytes=1 << 30, cuda=None, **rules):
    config = WorkerConfig(num_workers=workers, lanes=8)
    dataset = SavableDataset(spec=spec, worker_config=config)
    options = PoolOptions(start_method="fork", arena_bytes=arena_bytes)
    host = WorkerPool(dataset, options) if workers else InProcess(dataset)
    if cuda is not None:
        host = OnDevice(host, DEVICE, 1, cuda)
    return StepGrouper(Loader(dataset, host, in_steps=True), DocsPerStep(**rules))


@pytest.mark.parametrize("lookahead", [1, 4])
def test_a_step_larger_than_the_shared_memory_is_given_all_the_same(lookahead):
    rules = {"target": 30, "lookahead": lookahead}  # ten micro-batches; two fit
    loader = loader_of(stream(large), arena_bytes=800_000, **rules)
    expected = loader_of(stream(large), workers=0, **rules)
    kept = []
    for ours, theirs in zip(islice(loader, 14), expected, strict=False):
        assert ours["__key__"] == theirs["__key__"]
        assert ours["__step__"] == theirs["__step__"]
        assert torch.equal(ours["x"], theirs["x"])
        kept = [*kept, ours["x"]][-1:]
    loader.close()


def test_after_a_full_arena_it_draws_ahead_again_as_soon_as_there_is_room():
    loader = loader_of(stream(large), workers=1, arena_bytes=1_400_000, target=6)  # four fit
    draw, drawn = loader._reader.draw, []

    def counted(*, ahead=False):
        try:
            draw(ahead=ahead)
        except ArenaFullError:
            drawn.append("full")
            raise
        drawn.append("ahead" if ahead else "due")

    loader._reader.draw = counted
    given = islice(loader, 100)
    held = [next(given), next(given)]
    for _ in range(6):
        next(given)
    assert "full" in drawn
    held.clear()
    for _ in range(4):  # what was cramped is handed over
        next(given)
    begin = len(drawn)
    for _ in range(20):
        next(given)
    assert drawn[begin:] == ["ahead"] * 20
    loader.close()


def test_steps_of_workers_are_those_of_this_process_saved_restored_and_killed():
    expected = plain(islice(loader_of(STREAM, workers=0, target=25), 40))
    loader = loader_of(STREAM, target=25)
    assert plain(islice(loader, 17)) == expected[:17]
    state = json.loads(json.dumps(loader.state_dict()))
    os.kill(processes(loader.loader)[0], signal.SIGKILL)
    assert plain(islice(loader, 10)) == expected[17:27]
    loader.load_state_dict(state)
    assert plain(islice(loader, 12)) == expected[17:29]
    again = loader_of(STREAM, workers=1, target=25)
    again.load_state_dict(state)
    assert plain(islice(again, 12)) == expected[17:29]
    again.close()
    loader.close()


def test_micro_batches_are_let_go_as_they_are_handed_out():
    loader = loader_of(stream(large), target=24, lookahead=1)
    for batch in islice(loader, 24):
        left = batch["__step__"].num_microbatches - batch["__step__"].index
        assert loader.stats().slots_in_use <= left + 1
        del batch
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_on_a_device_are_those_of_the_host(workers):
    expected = plain(islice(loader_of(STREAM, workers=0, target=25), 40))
    loader = loader_of(STREAM, workers=workers, cuda=FakeCuda(), target=25)
    assert plain(islice(loader, 17)) == expected[:17]
    state = json.loads(json.dumps(loader.state_dict()))
    assert plain(islice(loader, 10)) == expected[17:27]
    loader.load_state_dict(state)
    assert plain(islice(loader, 12)) == expected[17:29]
    loader.close()


def bad(batch):
    if any(sample["number"] == 77 for sample in batch):
        raise ZeroDivisionError("a sample that cannot be")
    return varying(batch)


def test_what_a_worker_of_one_rank_raises_is_told_to_the_others():
    store, loaders = HashStore(), []
    for rank in range(2):
        config = WorkerConfig(rank, 2, num_workers=1 - rank, lanes=8)
        dataset = SavableDataset(
            spec=stream(varying if rank else bad, size=100), worker_config=config
        )
        host = None if rank else WorkerPool(dataset, PoolOptions(start_method="fork"))
        rules = DocsPerStep(target=12, timeout_s=WAIT_S)
        loader = Loader(dataset, host, in_steps=True)
        loaders.append(StepGrouper(loader, rules, Exchange(config, WAIT_S, store)))

    def work(loader):
        try:
            for _ in islice(loader, 300):
                pass
        except Exception as error:  # noqa: BLE001 - looked at below
            return type(error).__name__, str(error)
        return None

    own, told = together(loaders, work)
    assert own == ("ZeroDivisionError", "a sample that cannot be")
    assert told[0] == "StepsError"
    assert "rank 0 has failed: ZeroDivisionError: a sample that cannot be" in told[1]
    loaders[0].close()


def test_without_steps_a_loader_goes_through_none_of_it(monkeypatch):
    def called(*_):
        raise AssertionError("steps were asked for")

    for name in ("next_batch", "run_state"):
        monkeypatch.setattr(StepGrouper, name, called)
    config = WorkerConfig(lanes=8)
    loader = Loader(SavableDataset(spec=STREAM, worker_config=config))
    assert type(loader) is Loader
    assert all("__step__" not in batch for batch in islice(loader, 20))
    assert loader._host._journal._kept is None
