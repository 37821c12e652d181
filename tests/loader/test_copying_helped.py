"""A second thread may help with copying, and nothing depends on when it comes, or whether."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys

import pytest

from energy_data.data.tar import native

pytestmark = [
    pytest.mark.skipif(not hasattr(native.COPY, "past_caches"), reason="not compiled"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc"),
]

# Threads that are not to be had, that do all before the one that starts them goes on, that come
# when all is done, or that are in the middle of a chunk when all others are done: they read a page
# that is not there for a while.
THREADS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
typedef int Create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
typedef struct { void *(*run)(void *); void *of; } Work;
int is_on, num_asked, num_joinable, num_ended;
static sem_t told;
static void *page;
static int is_now(const char *name) { return !strcmp(getenv("THREADS"), name); }
static void found_missing(int number)
{
    sem_post(&told);
    usleep(300000);
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}
void hide(void *missing)
{
    page = missing;
    signal(SIGSEGV, found_missing);
    mprotect(page, 4096, PROT_NONE);
}
static void *work(void *given)
{
    Work work = *(Work *)given;
    free(given);
    if (is_now("late"))
        usleep(300000);
    work.run(work.of);
    __atomic_add_fetch(&num_ended, 1, __ATOMIC_SEQ_CST);
    if (is_now("first"))
        sem_post(&told);
    return NULL;
}
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *of)
{
    Create *real = dlsym(RTLD_NEXT, "pthread_create");
    if (!is_on)
        return real(thread, how, run, of);
    int state = 0;
    pthread_attr_getdetachstate(how, &state);
    num_asked++;
    num_joinable += state != PTHREAD_CREATE_DETACHED;
    if (is_now("none"))
        return EAGAIN;
    Work *made = malloc(sizeof *made);
    *made = (Work){run, of};
    sem_init(&told, 0, 0);
    int error = real(thread, how, work, made);
    if (is_now("first") || (is_now("amid") && num_asked == 1))
        while (sem_wait(&told)) {}
    return error;
}
"""

BEGIN = """
import ctypes, mmap, os, random, signal, sys, time
from energy_data.loading.copying import PastCaches

libc = ctypes.CDLL(None)
is_on, asked, joinable, ended = (
    ctypes.c_int.in_dll(libc, name) for name in ("is_on", "num_asked", "num_joinable", "num_ended")
)
threads, copy = sys.argv[2], PastCaches(bool(int(sys.argv[1])), num_threads=2)
MIB = 1 << 20

def wait():
    while threads not in ("none", "first") and ended.value < asked.value:
        time.sleep(0.01)
"""

# Says how many threads were asked for and, where that is sure, how many had ended when the copy was
# there, and which signals those that had not would handle; then takes the memory away under them.
EXACT = """
data = random.Random(7).randbytes(5 * MIB + 77)
missing = mmap.mmap(-1, 4096)
missing[:1] = data[1:2]
sizes = [0, 1, 3 * MIB + 5, 63, 256 << 10, 2 * MIB]
memory, pieces, expected, end = mmap.mmap(-1, 8 * MIB), [], b"", 0
for size in sizes:
    begin = end + 3
    end = begin + size
    part = memoryview(data)[size % 7 : size % 7 + size]
    pieces.append((begin, end, memoryview(missing)[:1] if size == 1 else part))
    expected += bytes(3) + part
before = set(os.listdir("/proc/self/task"))
signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR2})
if threads == "amid":
    libc.hide(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(missing))))
is_on.value = 1
copy(memory, pieces)
assert memory[:] == expected.ljust(8 * MIB, bytes(1))
print(asked.value, *([] if threads == "amid" else [ended.value]))
assert not joinable.value  # nobody joins them
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGUSR2}
for task in set(os.listdir("/proc/self/task")) - before if threads == "late" else ():
    lines = open(f"/proc/self/task/{task}/status").read().splitlines()
    blocked = next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk"))
    print(*(sign.name for sign in signal.Signals if not blocked >> (sign - 1) & 1))
memory.close()
del data, part, pieces
wait()
"""

# Says how many threads were asked for one chunk, and how much memory a job of 2.4 MB left behind.
FREED = """
def in_use():
    libc.mallinfo2.restype = Info
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd

names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Info = type("Info", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in names]})
memory, pieces = mmap.mmap(-1, MIB), [(0, 1, b"x")] * 100_000
is_on.value = 1
copy(memory, pieces[:1])
print(asked.value)
before = in_use()
copy(memory, pieces)
wait()
print(asked.value, (in_use() - before) >> 20)
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


def told_by(program, preloaded, threads, is_passing=0):
    found = subprocess.run(
        [sys.executable, "-c", BEGIN + program, str(is_passing), threads],
        env={**os.environ, "LD_PRELOAD": preloaded, "THREADS": threads},
        capture_output=True,
        text=True,
    )
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout.splitlines()


@pytest.mark.parametrize("is_passing", [0, 1])
@pytest.mark.parametrize(
    ("threads", "told"),
    [
        ("none", ["1 0"]),
        ("first", ["1 1"]),
        ("late", ["1 0", "SIGILL SIGTRAP SIGBUS SIGFPE SIGKILL SIGSEGV SIGSTOP"]),
        ("amid", ["1"]),
    ],
)
def test_a_copy_is_exact_whenever_its_helper_comes(preloaded, threads, told, is_passing):
    assert told_by(EXACT, preloaded, threads, is_passing) == told


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="another libc")
@pytest.mark.parametrize("threads", ["none", "first", "late"])
def test_no_thread_is_started_for_one_chunk_and_a_job_is_freed_by_whoever_ends_last(
    preloaded, threads
):
    assert told_by(FREED, preloaded, threads) == ["0", "1 0"]
