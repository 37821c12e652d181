"""Bugs of processes that Energon had and mended, by the number it gave them; none of them is ours.

Each program is a trainer of its own with real worker processes; the table of all bugs is in
`test_fixed_bugs`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from data import TEXTS, make_dataset

HERE = Path(__file__).parent
SECONDS = 120  # a program that takes longer is stuck

TRAINER = """
import gc, os, sys, threading
from itertools import islice
from energy_data.energon import (
    Cooker, DefaultTaskEncoder, FileStoreCachePool, SystemFileStore, TextSample, WorkerConfig,
    basic_sample_keys, cooker, get_savable_loader, get_train_dataset,
)

def loader_of(path, num_workers=2, task_encoder=None, cache_pool=None, batch_size=2):
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, lanes=4)
    dataset = get_train_dataset(
        path, batch_size=batch_size, shuffle_buffer_size=10, max_samples_per_sequence=5,
        worker_config=config, task_encoder=task_encoder,
    )
    return get_savable_loader(dataset, cache_pool=cache_pool)

def drawn(loader, count):
    return [batch.text for batch in islice(loader, count)]
"""


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("processes") / "texts", TEXTS, images=False)


def run(program, *arguments):
    """Return what a program prints; it must end, and without an error."""
    done = subprocess.run(
        [sys.executable, "-c", TRAINER + program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent}:{HERE.parents[1]}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


GARBAGE = """
class Device:  # as a tensor of a GPU: only the process that made it may free it
    def __init__(self):
        self.itself = self

    def __del__(self):
        os.write(files, f"{os.getpid()} ".encode())

files = os.open(sys.argv[2], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
gc.disable()
for _ in range(50):
    Device()
kept = [Device()]
gc.set_threshold(1_000_000)  # that garbage is there still when workers start
gc.enable() if sys.argv[3] == "on" else None

class Collecting(DefaultTaskEncoder):
    def encode_sample(self, sample):
        gc.collect()
        return TextSample.derive_from(sample, text=f"{gc.isenabled()}")

loader = loader_of(sys.argv[1], task_encoder=Collecting())
print(*{text for batch in drawn(loader, 8) for text in batch})
loader.close()
print(os.getpid(), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("collecting", ["on", "off"])
def test_pr237_workers_never_free_what_the_trainer_left_to_be_collected(
    texts, tmp_path, collecting
):
    """PR #237, 06d99a0: CUDA objects of the trainer were freed in its workers, which crashed."""
    said = run(GARBAGE, texts, tmp_path / "freed", collecting)
    *enabled, trainer = said
    assert enabled == [str(collecting == "on")]
    assert set((tmp_path / "freed").read_text().split()) <= {trainer}


PROXY = """
class Proxy:  # as of django: looking at it from outside is an error until it is set up
    @property
    def __class__(self):
        raise RuntimeError("settings are not configured")

    def __getattr__(self, name):
        raise RuntimeError("settings are not configured")

kept = [Proxy()]
loader = loader_of(sys.argv[1])
state = (drawn(loader, 4), loader.save_state_rank())[1]
again = loader_of(sys.argv[1])
again.restore_state_rank(state)
print(len(drawn(again, 4)))
loader.close(), again.close()
"""


def test_pr198_objects_of_others_that_must_not_be_looked_at_are_left_alone(texts):
    """PR #198: every object of the trainer was looked at, and lazy ones of django raised."""
    assert run(PROXY, texts) == ["4"]


FINALIZERS = """
gc.set_threshold(1)  # garbage is collected everywhere: within each lock that there is
from energy_data.data.registry import open_store

class Knot:
    def __init__(self, *things):
        self.itself, self.things = self, things

pool = FileStoreCachePool(parent_cache_dir=sys.argv[2], num_workers=4)
store = open_store(sys.argv[1])
for number in range(300):
    lazy = pool.get_lazy(store, f"texts-{number % 20:04d}.txt")
    if number % 3 == 0:
        lazy.get()
    Knot(lazy)  # let go of only by a collection of garbage
    Knot(open_store(sys.argv[1]), pool.to_cache(b"x" * 10, "x"))
pool.close()

loader = loader_of(sys.argv[1], batch_size=8)
for batch in islice(loader, 60):
    Knot(batch)
loader.close()
print("done")
"""


def test_pr190_what_is_let_go_of_within_a_lock_does_not_wait_for_it(texts, tmp_path):
    """PR #190 (cde61d3, 3431714): a `__del__` that ran while its lock was held waited for ever."""
    assert run(FINALIZERS, texts, tmp_path) == ["done"]


FORKED = """
pool = FileStoreCachePool(parent_cache_dir=sys.argv[2], num_workers=2)
store = SystemFileStore(sys.argv[1])
gc.disable()
lazy = pool.get_lazy(store, "shard-0.tar")
lazy.get()
other = pool.get_lazy(store, "shard-1.tar")

class Knot:
    pass

knot = Knot()
knot.itself, knot.lazy = knot, other
del other, knot
held, leave = threading.Event(), threading.Event()

def hold():
    with pool._folder._lock:
        held.set()
        leave.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if not child:
    gc.collect()  # lets go of a file of the parent, whose lock nobody here will ever free
    os._exit(0)
leave.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
gc.collect()
pool.close()
"""


def test_pr190_a_forked_child_lets_the_files_of_its_parent_be(texts, tmp_path):
    """PR #190: the same deadlock, with a lock that a thread of the parent held at the fork."""
    assert run(FORKED, texts, tmp_path) == ["0"]


THREADS = """
@cooker(need_primary=True, need_cache=True)
def cook(sample, *, primary, cache):
    lazy = cache.get_lazy(primary, ".txt")
    return TextSample(**basic_sample_keys(sample), text=lazy.get(sample))

class Cooking(DefaultTaskEncoder):
    cookers = [Cooker(cook)]

pool = FileStoreCachePool(parent_cache_dir=sys.argv[2], num_workers=2)
here = loader_of(sys.argv[1], 0, Cooking(), pool)
expected = drawn(here, 12)
assert any("energy-data-cache" in thread.name for thread in threading.enumerate())

before = set(threading.enumerate())
at_fork = []
os.register_at_fork(before=lambda: at_fork.append(set(threading.enumerate()) - before))
loader = loader_of(sys.argv[1], 2, Cooking(), pool)
assert drawn(loader, 12) == expected
loader.close()
print(len(at_fork), len(set().union(*at_fork)))
pool.close()
"""


def test_18e39d2_loaders_start_no_thread_before_they_fork_and_pools_begin_anew_after_it(
    tmp_path_factory,
):
    """18e39d2, 50ee5a8, ea89a0e: threads that ran before a fork were missing, or stuck, after."""
    folder = tmp_path_factory.mktemp("threads")
    crude = make_dataset(
        folder / "crude", "{__module__: megatron.energon, __class__: CrudeWebdataset}\n"
    )
    assert run(THREADS, crude, folder) == ["2", "0"]
