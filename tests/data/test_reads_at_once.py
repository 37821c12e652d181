"""The compiled part reads many samples at once, and leaves others their turn."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tars import one_shard, sample_files

from energy_data import RawTensor
from energy_data.core.batch_memory import TensorRow, new_rows
from energy_data.data.decode.parts import decode_text
from energy_data.data.tar import native, reader
from energy_data.data.tar.reader import locate

pytestmark = pytest.mark.skipif(native.TAR is None, reason="installed without a compiler")

# From the page cache a read is over before another thread has woken up: so each takes its time.
SLOW_READS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
__attribute__((weak)) int PyGILState_Check(void);
int num_reads, num_locked;
ssize_t pread64(int fd, void *data, size_t size, off_t offset)
{
    ssize_t (*real)(int, void *, size_t, off_t) = dlsym(RTLD_NEXT, "pread64");
    num_reads++;
    num_locked += PyGILState_Check && PyGILState_Check();
    usleep(300);
    return real(fd, data, size, offset);
}
ssize_t pread(int fd, void *data, size_t size, off_t offset)
{
    return pread64(fd, data, size, offset);
}
"""

# Prints how often it waited in all, how often it read, and how often with Python locked.
PROGRAM = """
import ctypes, resource, sys, threading
from itertools import repeat
import numpy as np
from energy_data.data.registry import open_source

source, numbers = open_source(sys.argv[1]), np.arange(0, 256, 2)  # with gaps between them
source.read(numbers)
counts = [ctypes.c_int.in_dll(ctypes.CDLL(None), name) for name in ("num_reads", "num_locked")]
done = threading.Event()
threading.Thread(target=lambda: all(not done.is_set() for _ in repeat(None)), daemon=True).start()
before = [resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw, *[count.value for count in counts]]
source.read(numbers)
after = [resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw, *[count.value for count in counts]]
done.set()
print(*[b - a for a, b in zip(before, after)])
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_other_threads_run_meanwhile_and_keep_it_waiting_once_for_many_samples(tmp_path):
    one_shard(tmp_path, [(f"{n}.bin", bytes(8192)) for n in range(256)])
    (tmp_path / "slow.c").write_text(SLOW_READS)
    subprocess.run(["gcc", "-shared", "-fPIC", "slow.c", "-o", "slow.so"], cwd=tmp_path, check=True)
    loaded = f"{os.environ.get('LD_PRELOAD', '')} {tmp_path / 'slow.so'}"
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path],
        env={**os.environ, "LD_PRELOAD": loaded},
        capture_output=True,
        text=True,
        check=True,
    )
    waited, num_reads, num_locked = map(int, found.stdout.split())
    assert num_reads == 128
    assert num_locked == 0
    assert waited - num_reads < 40


class AlarmError(Exception):
    pass


@pytest.fixture
def alarm():
    """Raised in 20 ms."""

    def ring(*_):
        raise AlarmError

    before = signal.signal(signal.SIGALRM, ring)
    gc.disable()  # what is raised in its callbacks goes nowhere
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.02)
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.enable()
    signal.signal(signal.SIGALRM, before)


RAW = RawTensor("uint8", (64, 64))


def many(folder: Path, decoder, times: int):
    """The columns of 80 samples, more than are read at once, again and again."""
    files = [(f"{n}.bin", bytes(4096)) for n in range(80)]
    spans, _ = locate(
        [(one_shard(folder, files, decoders={"bin": decoder}).layout, list(range(80)))]
    )
    fds, file_rows, *columns = spans.columns
    return spans, (fds, file_rows, *[column * times for column in columns])


def test_a_signal_is_heard_while_samples_are_read(tmp_path, alarm):
    _spans, columns = many(tmp_path, "bytes", 2000)
    found: list = []
    alarm()
    with pytest.raises(AlarmError):
        native.TAR.read_plain(found, *columns, decode_text)
    assert len(found) < 160_000


def test_a_signal_is_heard_while_tensors_are_read(tmp_path, alarm):
    _spans, columns = many(tmp_path, RAW, 2000)
    found: list = []
    rows = new_rows(80, RAW.shape, RAW.dtype)
    numbers = list(range(80)) * 2000
    alarm()
    with pytest.raises(AlarmError):
        native.TAR.read_rows(
            found, *columns, numbers, rows.data, 4096, lambda *_: True, TensorRow, rows.tensor
        )
    assert len(found) < 160_000


def test_its_memory_is_given_back(tmp_path):
    source = one_shard(tmp_path, sample_files(0), decoders={"bin": len})
    source.read(np.arange(1))
    tracemalloc.start()
    try:
        for _ in range(3):
            source.read(np.arange(1))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 16


def test_the_largest_plain_sample_is_left_to_nobody_else(tmp_path, monkeypatch):
    source = one_shard(tmp_path, [(f"{n}.bin", bytes((1 << 16) - 512)) for n in range(5)])
    monkeypatch.setattr(reader, "read_strictly", None)
    assert len(source.read(np.arange(0, 5, 2))) == 3
