"""The law with worker processes: they change how fast batches come, and nothing else."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import threading
import time
from itertools import islice, product

import pytest
from trees import A, B, C, batches, finite, leaf, samples

from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.passes import ConcatSpec, LimitSpec
from loading.own_time import OwnTime, worked_s
from loading.runs import run, run_in_step
from loading.workers import BLEND, QUICK, STREAM, crew, is_alive, processes, worker_loader

METHODS = ["fork", "forkserver", "spawn", "thread"]
PASS = finite(ConcatSpec((A, B, C, leaf("d", 23))), 4)


def ranks_of(ranks: int, **facts):
    return [worker_loader(rank=rank, ranks=ranks, **facts) for rank in range(ranks)]


def close(loaders):
    for loader in loaders:
        loader.close()


def states(loaders):
    """The states of the ranks, through JSON."""
    return json.loads(json.dumps([loader.state_dict() for loader in loaders]))


EXPECTED = run(ranks_of(1, workers=0), rounds=96)

# Every pair of values of (ranks, workers), (workers, prefetch), (prefetch, start method).
COVER = [
    (1, 1, 1, "fork"),
    (1, 2, 2, "forkserver"),
    (1, 5, 8, "fork"),
    (2, 1, 8, "forkserver"),
    (2, 2, 1, "fork"),
    (2, 5, 2, "fork"),
    (4, 1, 2, "fork"),
    (4, 2, 8, "fork"),
    (4, 5, 1, "forkserver"),
    (1, 1, 2, "spawn"),
    *((1, workers, prefetch, "thread") for workers in (1, 2, 5) for prefetch in (1, 2, 8)),
    (2, 2, 8, "thread"),
    (4, 5, 1, "thread"),
]
ALL = [case for case in product([1, 2, 4], [1, 2, 5], [1, 2, 8], METHODS) if case not in COVER]


def gives_the_stream(ranks, workers, prefetch, method):
    loaders = ranks_of(ranks, workers=workers, prefetch=prefetch, start_method=method)
    assert run(loaders, rounds=96 // ranks) == EXPECTED
    close(loaders)


@pytest.mark.parametrize(("ranks", "workers", "prefetch", "method"), COVER)
def test_any_ranks_workers_prefetch_and_start_method_give_one_stream(
    ranks, workers, prefetch, method
):
    gives_the_stream(ranks, workers, prefetch, method)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "workers", "prefetch", "method"), ALL)
def test_all_ranks_workers_prefetch_and_start_methods_give_one_stream(
    ranks, workers, prefetch, method
):
    gives_the_stream(ranks, workers, prefetch, method)


def kill_one(loaders, rng):
    """Kill -9 a random worker of a random rank, if there is one."""
    alive = [process for loader in loaders for process in processes(loader) if is_alive(process)]
    if alive:
        os.kill(rng.choice(alive), signal.SIGKILL)


def rescaled_and_killed(rng, rescales, rounds, methods):
    """Run the stream with random rescales, and a worker killed between batches; the batches."""
    given, saved = {}, None
    for _ in range(rescales):
        ranks = rng.choice([1, 2, 4])
        facts = {"workers": rng.choice([0, 1, 2, 5]), "prefetch": rng.choice([1, 2, 8])}
        loaders = ranks_of(ranks, start_method=rng.choice(methods), **facts)
        for loader in loaders if saved is not None else ():
            loader.restore_state_global(saved)
        for _ in range(rng.randint(1, rounds)):
            given |= run_in_step(loaders, 1)
            if rng.random() < 0.5:
                kill_one(loaders, rng)
        saved = states(loaders)
        rng.shuffle(saved)
        close(loaders)
    return given


def test_ten_rescales_and_killed_workers_in_one_run_give_one_stream():
    given = rescaled_and_killed(random.Random(0), 10, 4, ["fork", "thread", "forkserver"])
    assert list(given) == list(range(len(given)))
    assert given == {g: EXPECTED[g] for g in given}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_random_rescales_and_killed_workers_give_one_stream(seed):
    given = rescaled_and_killed(random.Random(seed), 10, 6, METHODS)
    expected = run(ranks_of(1, workers=0), rounds=len(given))
    assert given == expected


@pytest.mark.parametrize("method", QUICK)
@pytest.mark.parametrize("prefetch", [1, 8])
def test_the_state_is_that_of_a_loader_without_workers_at_every_batch(prefetch, method):
    one = worker_loader(workers=0)
    two = worker_loader(workers=2, prefetch=prefetch, start_method=method)
    assert one.state_dict() == two.state_dict()
    for alone, hosted in islice(zip(one, two, strict=True), 40):
        assert alone == hosted
        assert one.state_dict() == two.state_dict()
        assert one.last_batch == two.last_batch
    two.close()
    assert one.state_dict() == two.state_dict()


@pytest.mark.parametrize("method", QUICK)
def test_the_state_of_a_pass_is_that_without_workers_at_every_batch_and_after_the_last(method):
    one, two = worker_loader(PASS, workers=0), worker_loader(PASS, workers=3, start_method=method)
    for _ in range(3):
        for alone, hosted in zip(one, two, strict=True):
            assert alone == hosted
            assert one.state_dict() == two.state_dict()
        assert one.state_dict() == two.state_dict()
    two.close()


@pytest.mark.parametrize(("before", "after"), [*product(QUICK, QUICK)])
@pytest.mark.parametrize("workers", [0, 1, 5])
def test_saved_with_three_workers_it_goes_on_with_any_number(workers, before, after):
    for rounds in (0, 1, 7, 30):
        first = worker_loader(workers=3, start_method=before)
        run([first], rounds)
        second = worker_loader(workers=workers, start_method=after)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert run([second], 12) == {g: EXPECTED[g] for g in range(rounds, rounds + 12)}
        close([first, second])


@pytest.mark.parametrize("method", QUICK)
def test_a_state_loaded_in_the_middle_of_an_iteration_is_where_it_goes_on(method):
    loader = worker_loader(start_method=method, prefetch=8)
    stream = iter(loader)
    first = list(islice(stream, 5))
    state = loader.state_dict()
    then = list(islice(stream, 9))
    for _ in range(3):
        stream.load_state_dict(state)
        assert list(islice(stream, 9)) == then
    assert first + then == list(EXPECTED.values())[:14]
    loader.close()


@pytest.mark.parametrize("method", QUICK)
def test_taking_the_state_a_thousand_times_changes_nothing(method):
    loader = worker_loader(start_method=method, prefetch=8)
    given = []
    for batch in islice(loader, 20):
        given.append(batch)
        states([loader] * 50)
    assert given == list(EXPECTED.values())[:20]
    loader.close()


@pytest.mark.parametrize("killed_at", range(12))
def test_a_worker_killed_near_the_end_of_a_pass_changes_nothing(killed_at):
    expected = [list(worker_loader(PASS, workers=0, lanes=4))]
    loader = worker_loader(PASS, workers=2, lanes=4, start_method="fork", prefetch=1)
    given = []
    for number, batch in enumerate(loader):
        given.append(batch)
        if number == killed_at:
            for process in processes(loader):
                os.kill(process, signal.SIGKILL)
    assert [given] == expected
    loader.close()


@pytest.mark.parametrize("method", QUICK)
def test_validation_is_the_same_each_time_also_after_one_that_was_abandoned(method):
    expected = list(worker_loader(PASS, workers=0, from_start=True))
    loader = worker_loader(PASS, start_method=method, from_start=True)
    workers = set()
    for taken in (None, 3, None, 0, 1, None):
        assert list(islice(loader, taken)) == expected[:taken]
        workers.add(tuple(map(id, crew(loader))))
    assert len(workers) == 1  # nobody was started again
    loader.close()


@pytest.mark.parametrize("method", QUICK)
def test_virtual_epochs_go_on_where_the_last_one_ended(method):
    loader = worker_loader(start_method=method, virtual_epoch_length=7)
    assert [batch for _ in range(4) for batch in loader] == list(EXPECTED.values())[:28]
    loader.close()


@pytest.mark.parametrize("method", QUICK)
def test_an_iterator_dropped_half_way_is_gone_on_by_the_next(method):
    loader = worker_loader(start_method=method)
    assert [batch for _ in range(6) for batch in islice(iter(loader), 3)] == list(
        EXPECTED.values()
    )[:18]
    loader.close()


@pytest.mark.parametrize("method", QUICK)
def test_two_loaders_at_once_do_not_disturb_each_other(method):
    one, two = (worker_loader(start_method=method, prefetch=n) for n in (1, 4))
    for first, second in islice(zip(one, two, strict=True), 10):
        assert first == second
    one.close()
    assert list(islice(two, 10)) == list(EXPECTED.values())[10:20]
    two.close()


@pytest.mark.parametrize("method", ["fork", "forkserver", "thread"])
def test_a_loader_may_be_used_from_a_thread(method):
    given = []

    def use():
        loader = worker_loader(start_method=method)
        given.extend(islice(loader, 20))
        loader.close()

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(60)
    assert given == list(EXPECTED.values())[:20]


@pytest.mark.parametrize("method", QUICK)
def test_more_workers_than_lanes_are_not_started(method):
    loader = worker_loader(workers=5, lanes=2, start_method=method)
    assert list(islice(loader, 8)) == list(islice(worker_loader(workers=0, lanes=2), 8))
    assert len(crew(loader)) == 2
    loader.close()


@pytest.mark.parametrize("method", QUICK)
def test_a_state_with_more_lanes_fits_workers_with_one_lane_each(method):
    saved = worker_loader(workers=0, lanes=8)
    expected = list(islice(saved, 3))
    state = saved.state_dict()
    expected = list(islice(saved, 20))
    loader = worker_loader(workers=8, lanes=None, start_method=method)
    few = worker_loader(workers=0, lanes=4)
    loader.load_state_dict(few.state_dict())
    list(islice(loader, 4))
    loader.load_state_dict(state)
    assert list(islice(loader, 20)) == expected
    loader.close()


def test_a_loader_is_closed_at_the_end_of_a_with():
    with worker_loader(start_method="fork") as loader:
        next(iter(loader))
        workers = processes(loader)
    assert len(workers) == 2
    assert not any(map(is_alive, workers))


def test_32_workers_end_at_once_and_not_one_after_another():
    loader = worker_loader(workers=32, lanes=32, start_method="fork")
    next(iter(loader))
    workers = processes(loader)
    clock, before_s = OwnTime({os.getpid()}), worked_s()
    loader.close()
    assert worked_s() - before_s < 2  # a second on two cores
    assert clock.passed() < 5
    assert len(workers) == 32
    assert not any(map(is_alive, workers))


@pytest.mark.parametrize("method", QUICK)
def test_a_loader_that_was_closed_goes_on(method):
    loader = worker_loader(start_method=method)
    first = list(islice(loader, 5))
    loader.close()
    loader.close()
    assert first + list(islice(loader, 5)) == list(EXPECTED.values())[:10]
    loader.close()


def test_a_large_state_is_loaded_while_workers_wait_to_be_read():
    parts = tuple(Part(samples(leaf(f"x{n}", 50)), 1) for n in range(1000))
    spec = batches(BlendSpec(parts), 4)
    loader = worker_loader(spec, start_method="fork", prefetch=100, lanes=4)
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert len(pickle.dumps(loader._host.states(0))) > 1 << 18  # more than a socket holds
    first = list(islice(loader, 3))
    time.sleep(0.5)  # workers fill their side
    for _ in range(2):
        loader.load_state_dict(state)
        assert list(islice(loader, 3)) == first
    loader.close()


@pytest.mark.parametrize("method", QUICK)
def test_batches_left_out_and_limits_are_the_same_with_workers(method):
    spec = LimitSpec(of=batches(samples(BLEND), 2), length=33)
    assert list(worker_loader(spec, start_method=method)) == list(worker_loader(spec, workers=0))
    assert STREAM.item_kind == "batches"


@pytest.mark.parametrize(("workers", "method"), [(4, "fork"), (4, "forkserver")])
def test_all_workers_are_started_before_the_first_is_waited_for(workers, method):
    loader = worker_loader(workers=workers, start_method=method)
    loader._host._begin_stale(0)
    started = list(loader._host._workers.values())
    assert len(started) == workers
    assert not any(worker.has_ended() or worker._arena for worker in started)
    next(iter(loader))
    assert "starting workers" in loader.stats().seconds
    loader.close()
