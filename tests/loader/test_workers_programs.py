"""Whole programs with worker processes: how they start, how they end, what they leave behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loader.own_time import OwnTime, until
from loader.workers import children, is_alive, left_in, named_memory, session

PROCESSES = ["fork", "forkserver", "spawn"]
METHODS = [*PROCESSES, "thread"]

PLAIN = """
import sys
from itertools import islice
from loader.workers import processes, worker_loader
loader = worker_loader(start_method=sys.argv[1])
stream = iter(loader)
print(*next(stream), flush=True)
"""


@pytest.fixture
def started(tmp_path):
    """Starts programs in a process group of their own; none survives the test."""
    running = []

    def start(text: str, *arguments: str, in_file: bool = True) -> subprocess.Popen:
        script = tmp_path / "program.py"
        script.write_text(text)
        program = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                *([str(script)] if in_file else ["-c", text]),
                *arguments,
            ],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(program)
        return program

    yield start
    for program in running:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()


def said(program: subprocess.Popen) -> str:
    line = program.stdout.readline().strip()
    assert line, program.stderr.read()
    return line


def end(program: subprocess.Popen, within_s: float = 20) -> tuple[str, str]:
    """What a program says until its end, which must come soon."""
    clock = OwnTime({program.pid})
    while True:
        try:
            return program.communicate(timeout=0.05)
        except subprocess.TimeoutExpired:
            assert clock.passed() < within_s, "the program does not end"


def until_gone(program: subprocess.Popen) -> None:
    """Wait until no process of a program is left."""
    program.wait()
    left = session(program.pid)
    until(lambda: not any(map(is_alive, left)), "orphans", left)


@pytest.mark.parametrize("method", METHODS)
def test_a_program_without_main_guard_works_and_ends_without_noise(started, method):
    program = started(PLAIN, method)
    said(program)
    assert end(program, within_s=5) == ("", "")
    assert program.returncode == 0
    until_gone(program)


def test_a_program_ends_though_another_library_used_finalizers_first(started):
    text = "import weakref\nkept = weakref.finalize(weakref, print)\n" + PLAIN
    program = started(text, "forkserver")
    said(program)
    assert end(program) == ("\n", "")
    assert program.returncode == 0


OF_MAIN = """
import sys
from loader.workers import worker_loader
from loader.encoders import encoding

def encode(sample):
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
    batch = next(iter(loader))
    print(type(batch) is Batch, len(batch.keys))
"""


@pytest.mark.parametrize("method", METHODS)
def test_functions_and_classes_of_a_guarded_main_work(started, method):
    out, err = end(started(OF_MAIN.replace("GUARD", '__name__ == "__main__"'), method))
    assert (out, err) == ("True 2\n", "")


def test_functions_of_an_unguarded_main_are_an_error_that_says_what_to_do(started):
    program = started(OF_MAIN.replace("GUARD", "True"), "forkserver")
    _, err = end(program)
    assert program.returncode == 1
    # Not the last line always: the other worker may still be telling its own trouble.
    (line,) = [line for line in err.splitlines() if "it ended while starting" in line]
    assert 'if __name__ == "__main__":' in line


def test_classes_that_exist_in_no_file_are_an_error_that_says_what_to_do(started):
    text = OF_MAIN.replace("GUARD", "True")  # as in a notebook: there is a __main__ without a file
    _, err = end(started(text, "forkserver", in_file=False))
    assert "SpecError" in err
    assert 'in a notebook; or use start_method="fork"' in err


@pytest.mark.parametrize("method", PROCESSES)
def test_a_killed_trainer_leaves_no_process(started, method):
    program = started(PLAIN + "while True: next(stream)\n", method)
    said(program)
    assert len(children(program.pid)) >= 2
    program.kill()
    until_gone(program)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_killed_trainer_leaves_no_process_that_waits_for_ever(started, method):
    text = PLAIN.replace("worker_loader(", "worker_loader(encoding(sleeps), ").replace(
        "from itertools", "from loader.encoders import encoding, sleeps\nfrom itertools"
    )
    program = started(text + "while True: next(stream)\n", method)
    said(program)
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
from loader.workers import children, crew, worker_loader

def save(number, frame):
    print("saved", json.dumps(loader.state_dict())[:11], flush=True)
    before = crew(loader)
    state = loader.state_dict()
    following = [next(stream) for _ in range(8)]
    loader.load_state_dict(state)
    assert following == [next(stream) for _ in range(8)]
    print("same workers", before == crew(loader), flush=True)
    sys.exit(3)

loader = worker_loader(start_method=sys.argv[1])
stream = iter(loader)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, save)
next(stream)
os.write(1, b"begun\\n")  # no `print`: it cannot be interrupted by a handler that prints
while True:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_outlive_a_signal_to_the_group_so_that_the_trainer_can_save(
    started, method, number
):
    program = started(TOLD, method)
    said(program)
    os.killpg(program.pid, number)
    out, err = end(program, within_s=5)
    assert out.splitlines() == ['saved {"format": ', "same workers True"]
    assert err == ""
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
from loader.workers import crew, is_alive, processes, worker_loader
loader = worker_loader(start_method=sys.argv[1])
stream = iter(loader)
batches = list(islice(stream, 4))
child = os.fork()
if child == 0:
    if sys.argv[2] == "close":
        loader.close()
    if sys.argv[2] == "use":
        try:
            assert len(list(islice(stream, 3))) == 3
        except EnergyDataError as error:
            assert 'Use start_method="fork"' in str(error)
    if sys.argv[2] == "exit":
        os._exit(0)
    sys.exit(0)
_, status = os.waitpid(child, 0)
before, alive = crew(loader), processes(loader)
batches += islice(stream, 8)
print(status, all(map(is_alive, alive)), before == crew(loader))
assert batches == list(islice(worker_loader(workers=0), 12))
"""


@pytest.mark.parametrize("does", ["close", "use", "exit", "nothing"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "thread"])
def test_a_forked_child_of_the_trainer_leaves_its_workers_alone(started, method, does):
    out, err = end(started(FORKS, method, does))
    assert out.splitlines()[-1] == "0 True True"
    assert err == ""


WARNS = """
import sys
from itertools import islice
from loader.encoders import encoding, warns
from loader.workers import worker_loader
list(islice(worker_loader(encoding(warns), start_method=sys.argv[1]), 4))
"""


@pytest.mark.parametrize("method", METHODS)
def test_warnings_logged_in_workers_reach_the_standard_error(started, method):
    _, err = end(started(WARNS, method))
    assert err.count("seen x/") >= 8


THREADS = """
import logging, sys, threading, time
from itertools import islice
import torch
from loader.workers import worker_loader

locks = [threading.Lock() for _ in range(8)]
log = logging.getLogger("busy")
log.addHandler(logging.NullHandler())

def busy(lock):
    while True:
        with lock:
            log.warning("%d", torch.ones(50_000).sum())
            time.sleep(0.0005)  # holds its lock, and leaves others a core

for lock in locks:
    threading.Thread(target=busy, args=(lock,), daemon=True).start()
for _ in range(3):
    loader = worker_loader(start_method=sys.argv[1])
    list(islice(loader, 8))
    loader.close()
print("done", flush=True)
import os
os._exit(0)
"""


@pytest.mark.parametrize("method", METHODS)
def test_workers_start_while_threads_of_the_trainer_hold_locks(started, method):
    out, _ = end(started(THREADS, method))
    assert out == "done\n"


RANKS = """
import sys
from itertools import islice
import torch.multiprocessing as processes
from loader.encoders import encoding
from loader.workers import worker_loader

def encode(sample):
    return sample

def rank(number, method):
    loader = worker_loader(encoding(encode), rank=number, ranks=2, start_method=method)
    print(len(list(islice(loader, 3))), flush=True)

if __name__ == "__main__":
    processes.spawn(rank, (sys.argv[1],), nprocs=2)
"""


def test_ranks_started_by_spawn_may_use_functions_of_main_in_their_workers(started):
    out, err = end(started(RANKS, "forkserver"))
    assert (out, err) == ("3\n3\n", "")


UNASKED = """
import torch
print(torch.cuda.is_initialized(), torch.distributed.is_initialized())
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_loader_begins_neither_cuda_nor_a_process_group(started, method):
    out, err = end(started(PLAIN + UNASKED, method))
    assert out.splitlines()[-1] == "False False"
    assert err == ""


GROUP = """
import sys
from torch import distributed
from attrs import evolve
from energy_data import Dataset, WorkerConfig, get_loader
from loader.workers import STREAM
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
config = WorkerConfig(0, 1, 2, data_parallel_group=distributed.new_group([0]))
loader = get_loader(Dataset(spec=STREAM, worker_config=config))
next(iter(loader))
loader.close()
distributed.destroy_process_group()
"""


def test_a_process_group_stays_in_the_trainer(started, tmp_path):
    program = started(
        GROUP.replace(
            ', init_method=f"file://{sys.argv[1]}"', (f', init_method="file://{tmp_path}/store"')
        )
    )
    _, err = end(program)
    assert program.returncode == 0, err
