"""Whole programs with worker processes: how they start, how they end, what they leave behind."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import cache, partial

import pytest

from loading.own_time import OwnTime
from loading.programs import end, run_of, said, starting, until_gone
from loading.workers import SPAWN, children, left_in, named_memory, session

PROCESSES = ["fork", "forkserver", SPAWN]
METHODS = [*PROCESSES, "thread"]

PLAIN = """
import sys
from itertools import islice
from loading.workers import processes, worker_loader
loader = worker_loader(start_method=sys.argv[1])
stream = iter(loader)
print(*next(stream), flush=True)
"""


@pytest.fixture
def started(tmp_path):
    with starting(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Runs of programs to their ends, each made once for all tests that look at it."""
    with starting(tmp_path_factory.mktemp("programs")) as start:
        yield cache(partial(run_of, start))


UNASKED = """
import torch
print(torch.cuda.is_initialized(), torch.distributed.is_initialized())
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_program_without_main_guard_works_and_ends_without_noise(seen, method):
    program, lines, err = seen(PLAIN + UNASKED, method, within_s=5)
    assert (len(lines), err) == (2, "")
    assert program.returncode == 0
    until_gone(program)


@pytest.mark.parametrize("method", METHODS)
def test_a_loader_begins_neither_cuda_nor_a_process_group(seen, method):
    assert seen(PLAIN + UNASKED, method, within_s=5).lines[1] == "False False"


def test_a_program_ends_though_another_library_used_finalizers_first(started):
    text = "import weakref\nkept = weakref.finalize(weakref, print)\n" + PLAIN
    program = started(text, "forkserver")
    said(program)
    assert end(program) == ("\n", "")
    assert program.returncode == 0


OF_MAIN = """
import logging, sys
from itertools import islice
from loading.workers import worker_loader
from loading.encoders import encoding

def encode(sample):
    logging.getLogger("user").warning("seen %s", sample["__key__"])
    return {**sample, "by": __name__}

class Batch:
    pass

def collate(samples):
    batch = Batch()
    batch.keys = [sample["__key__"] for sample in samples]
    return batch

if GUARD:
    from dataclasses import replace
    from attrs import evolve
    spec = evolve(encoding(encode), collate=collate)
    loader = worker_loader(spec, start_method=sys.argv[1])
    batch, *_ = islice(loader, 4)
    print(type(batch) is Batch, len(batch.keys))
"""


GUARDED = OF_MAIN.replace("GUARD", '__name__ == "__main__"')


@pytest.mark.parametrize("method", METHODS)
def test_functions_and_classes_of_a_guarded_main_work(seen, method):
    _, lines, err = seen(GUARDED, method)
    assert lines == ["True 2"]
    assert all(line.startswith("seen x/") for line in err.splitlines())


@pytest.mark.parametrize("method", METHODS)
def test_warnings_logged_in_workers_reach_the_standard_error(seen, method):
    assert seen(GUARDED, method).err.count("seen x/") >= 8


@pytest.mark.parametrize("method", ["forkserver", SPAWN])
def test_functions_of_an_unguarded_main_are_an_error_that_ends_with_what_to_do(started, method):
    program = started(OF_MAIN.replace("GUARD", "True"), method)
    _, err = end(program)
    assert program.returncode == 1
    assert err.count("Traceback") == 1
    assert 'under `if __name__ == "__main__":`, or move' in err.splitlines()[-1]


@pytest.mark.parametrize("method", ["forkserver", SPAWN])
def test_a_main_may_create_a_loader_above_its_guard(seen, method):
    created, used = GUARDED.split("    batch, *_")
    text = f"{created}\nif __name__ == '__main__':\n    batch, *_{used}".replace(
        'if __name__ == "__main__":', "if True:"
    )
    assert seen(text, method).lines == ["True 2"]


def test_classes_that_exist_in_no_file_are_an_error_that_says_what_to_do(started):
    text = OF_MAIN.replace("GUARD", "True")  # as in a notebook: there is a __main__ without a file
    _, err = end(started(text, "forkserver", in_file=False))
    assert "SpecError" in err
    assert 'in a notebook; or use start_method="fork"' in err


@pytest.mark.parametrize("method", PROCESSES)
def test_a_killed_trainer_leaves_no_process_that_waits_for_ever(started, method):
    text = PLAIN.replace("worker_loader(", "worker_loader(encoding(sleeps), ").replace(
        "from itertools", "from loading.encoders import encoding, sleeps\nfrom itertools"
    )
    program = started(text + "while True: next(stream)\n", method)
    said(program)
    assert len(children(program.pid)) >= 2
    program.kill()
    until_gone(program)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_trainers_killed_at_random_times_leave_no_process_and_no_shared_memory(started, method):
    rng = random.Random(method)
    for _ in range(20):
        program = started(PLAIN + "while True: next(stream)\n", method)
        clock, at = OwnTime({program.pid}), rng.uniform(0, 4)
        while clock.passed() < at:
            time.sleep(0.05)
        processes = session(program.pid)
        named = named_memory(processes)
        program.kill()
        until_gone(program)
        assert not left_in(named | named_memory(processes))
    said(started(PLAIN, method))  # the next one finds nothing in its way


TOLD = """
import json, os, signal, sys, time
from loading.workers import SPAWN, children, crew, worker_loader

def say(*words):  # no `print`: it cannot be interrupted by a handler that prints
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def save(number, frame):
    before = crew(loader)
    state = loader.state_dict()
    following = [next(stream) for _ in range(8)]
    loader.load_state_dict(state)
    assert following == [next(stream) for _ in range(8)]
    say("saved", json.dumps(state)[:11], "same workers", before == crew(loader))
    if number == signal.SIGINT:
        sys.exit(3)

loader = worker_loader(start_method=sys.argv[1])
stream = iter(loader)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, save)
next(stream)
say("begun")
while True:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("method", METHODS)
def test_workers_outlive_signals_to_the_group_so_that_the_trainer_can_save(started, method):
    program = started(TOLD, method)
    assert said(program) == "begun"
    for number in (signal.SIGTERM, signal.SIGINT):
        os.killpg(program.pid, number)
        assert said(program) == 'saved {"format":  same workers True'
    assert end(program, within_s=5) == ("", "")
    assert program.returncode == 3
    until_gone(program)


@pytest.mark.parametrize("method", METHODS)
def test_control_c_ends_a_program_with_one_traceback(started, method):
    program = started(PLAIN + "while True: next(stream)\n", method)
    said(program)
    os.killpg(program.pid, signal.SIGINT)
    _, err = end(program)
    assert err.count("Traceback") == 1
    assert "KeyboardInterrupt" in err
    until_gone(program)


FORKS = """
import os, sys
from energy_data import EnergyDataError
from itertools import islice
from loading.workers import crew, is_alive, processes, worker_loader
loader = worker_loader(start_method=sys.argv[1])
stream = iter(loader)
batches = []
for does in sys.argv[2:]:
    batches += islice(stream, 4)
    child = os.fork()
    if child == 0:
        if does == "close":
            loader.close()
        if does == "use":
            try:
                assert len(list(islice(stream, 3))) == 3
            except EnergyDataError as error:
                assert 'Use start_method="fork"' in str(error)
        if does == "exit":
            os._exit(0)
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    before, alive = crew(loader), processes(loader)
    batches += islice(stream, 8)
    print(does, status, all(map(is_alive, alive)), before == crew(loader), flush=True)
assert batches == list(islice(worker_loader(workers=0), len(batches)))
"""
CHILDREN = ("close", "use", "exit", "nothing")


@pytest.mark.parametrize("method", ["fork", "forkserver", "thread"])
def test_a_forked_child_of_the_trainer_leaves_its_workers_alone(seen, method):
    _, lines, err = seen(FORKS, method, *CHILDREN)
    assert {f"{does} 0 True True" for does in CHILDREN} <= set(lines)
    assert err == ""


THREADS = """
import logging, sys, threading, time
from itertools import islice
import torch
from loading.workers import worker_loader

locks = [threading.Lock() for _ in range(8)]
log = logging.getLogger("busy")
log.addHandler(logging.NullHandler())

def busy(lock):
    while True:
        with lock:
            log.warning("%d", torch.ones(50_000).sum())
            time.sleep(float(sys.argv[2]))  # holds its lock, and leaves others a core

for lock in locks:
    threading.Thread(target=busy, args=(lock,), daemon=True).start()
list(islice(worker_loader(start_method=sys.argv[1]), 8))
print("done", flush=True)
import os
os._exit(0)
"""


# Processes that import torch take as long as the threads leave them, and the threads work on.
@pytest.mark.parametrize(
    ("method", "holds_s"), [("fork", 0.0005), ("thread", 0.0005), ("forkserver", 0.005)]
)
def test_workers_start_while_threads_of_the_trainer_hold_locks(started, method, holds_s):
    out, _ = end(started(THREADS, method, str(holds_s)))
    assert out == "done\n"


RANKS = """
import sys
from itertools import islice
import torch.multiprocessing as processes
from attrs import evolve
from energy_data import SavableDataset, WorkerConfig, get_loader
from torch import distributed
from loading.encoders import encoding
from loading.workers import STREAM, worker_loader

def encode(sample):
    return sample

def rank(number, method, store):
    loader = worker_loader(encoding(encode), rank=number, ranks=2, start_method=method)
    print(len(list(islice(loader, 3))), flush=True)
    loader.close()
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=number, world_size=2
    )
    config = WorkerConfig(number, 2, 2, data_parallel_group=distributed.new_group([0, 1]))
    dataset = SavableDataset(spec=STREAM, worker_config=config)
    loader = get_loader(dataset, start_method=method)
    print("of a group", len(list(islice(loader, 3))), flush=True)
    loader.close()
    distributed.destroy_process_group()

if __name__ == "__main__":
    processes.spawn(rank, sys.argv[1:], nprocs=2)
"""


@pytest.mark.slow
def test_ranks_started_by_spawn_use_functions_of_main_and_a_process_group_stays_in_them(
    seen, tmp_path
):
    program, lines, err = seen(RANKS, "forkserver", str(tmp_path / "of_ranks"))
    assert (lines.count("3"), lines.count("of a group 3"), err) == (2, 2, "")
    assert program.returncode == 0
