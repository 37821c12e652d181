"""A second thread may help with copying, and nothing depends on when it comes, or whether."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from energy_data import compiled

pytestmark = [
    pytest.mark.skipif(not hasattr(compiled.COPY, "past_caches"), reason="not compiled"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc"),
]

# Threads that are not to be had, that do all before the one that starts them goes on, or that come
# when all is done.
THREADS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef int Create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
typedef struct { void *(*run)(void *); void *of; } Work;
int is_on, num_asked, num_ended;
static sem_t ended;
static void *work(void *given)
{
    Work *work = given;
    if (!strcmp(getenv("THREADS"), "late"))
        usleep(300000);
    work->run(work->of);
    __atomic_add_fetch(&num_ended, 1, __ATOMIC_SEQ_CST);
    free(work);
    sem_post(&ended);
    return NULL;
}
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *of)
{
    Create *real = dlsym(RTLD_NEXT, "pthread_create");
    if (!is_on)
        return real(thread, how, run, of);
    num_asked++;
    if (!strcmp(getenv("THREADS"), "none"))
        return EAGAIN;
    Work *made = malloc(sizeof *made);
    *made = (Work){run, of};
    sem_init(&ended, 0, 0);
    int error = real(thread, how, work, made);
    if (!strcmp(getenv("THREADS"), "first"))
        while (sem_wait(&ended)) {}
    return error;
}
"""

# Says how many threads were asked for, how many had ended when the copy was there, and which
# signals those that had not would handle; then takes the memory away under them.
PROGRAM = """
import ctypes, mmap, os, random, signal, sys, time
from energy_data.loader.copying import PastCaches

is_on, asked, ended = (
    ctypes.c_int.in_dll(ctypes.CDLL(None), name) for name in ("is_on", "num_asked", "num_ended")
)
MIB = 1 << 20
data = random.Random(7).randbytes(5 * MIB + 77)
sizes = [0, 1, 3 * MIB + 5, 63, 256 << 10, 2 * MIB]
memory, pieces, expected, end = mmap.mmap(-1, 8 * MIB), [], b"", 0
for size in sizes:
    begin = end + 3
    end = begin + size
    pieces.append((begin, end, memoryview(data)[size % 7 : size % 7 + size]))
    expected += bytes(3) + data[size % 7 : size % 7 + size]
before = set(os.listdir("/proc/self/task"))
is_on.value = 1
PastCaches(is_passing=bool(int(sys.argv[1])), num_threads=2)(memory, pieces)
assert memory[:] == expected.ljust(8 * MIB, bytes(1))
print(asked.value, ended.value)
for task in set(os.listdir("/proc/self/task")) - before:
    lines = open(f"/proc/self/task/{task}/status").read().splitlines()
    blocked = next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk"))
    print(*(sign.name for sign in signal.Signals if not blocked >> (sign - 1) & 1))
memory.close()
del data, pieces
while sys.argv[2] == "late" and not ended.value:
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("threads")
    (folder / "threads.c").write_text(THREADS)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-pthread", "threads.c", "-o", "threads.so"],
        cwd=folder,
        check=True,
    )
    return f"{os.environ.get('LD_PRELOAD', '')} {folder / 'threads.so'}"


@pytest.mark.parametrize("is_passing", [0, 1])
@pytest.mark.parametrize(
    ("threads", "told"),
    [
        ("none", ["1 0"]),
        ("first", ["1 1"]),
        ("late", ["1 0", "SIGILL SIGTRAP SIGBUS SIGFPE SIGKILL SIGSEGV SIGSTOP"]),
    ],
)
def test_a_copy_is_exact_whenever_its_helper_comes(preloaded, threads, told, is_passing):
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(is_passing), threads],
        env={**os.environ, "LD_PRELOAD": preloaded, "THREADS": threads},
        capture_output=True,
        text=True,
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines() == told
