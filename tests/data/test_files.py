from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import threading
import tracemalloc
from functools import lru_cache

import pytest

from energy_data.data.files import local
from energy_data.data.files.local import (
    LocalFile,
    Window,
    keep_open,
    open_file,
    write_atomically,
)
from energy_data.errors import StructureError


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def numbered(folder, count):
    paths = [str(folder / f"{n}") for n in range(count)]
    for n, path in enumerate(paths):
        write_atomically(path, bytes([n % 256]) * 100, 0o644)
    return paths


def test_ranges_are_exact(tmp_path):
    write_atomically(str(tmp_path / "a"), bytes(range(100)), 0o644)
    file = LocalFile(str(tmp_path / "a"))
    assert file.read(10, 5) == bytes(range(10, 15))
    buffer = bytearray(8)
    file.read_into(memoryview(buffer)[2:6], 96)
    assert buffer == bytes([0, 0, 96, 97, 98, 99, 0, 0])
    for call in (
        lambda: file.read(96, 5),
        lambda: file.read(0, 1 << 50),
        lambda: file.read_into(memoryview(buffer), 95),
    ):
        with pytest.raises(StructureError, match="the file has 100"):
            call()


@pytest.mark.parametrize("at_once", [local._ONE_CALL, 1000], ids=["short", "large"])
def test_what_one_call_does_not_read_is_read_into_one_buffer(tmp_path, monkeypatch, at_once):
    data = os.urandom(1 << 22)
    write_atomically(str(tmp_path / "a"), data, 0o644)
    file, pread = LocalFile(str(tmp_path / "a")), os.pread
    monkeypatch.setattr(local, "_ONE_CALL", at_once)
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 1000), at))
    tracemalloc.start()
    try:
        found = file.read(7, len(data) - 7)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == data[7:]
    assert peak < 1.1 * len(data)
    (tmp_path / "a").write_bytes(data[:100])
    with pytest.raises(StructureError, match="the file has 100"):
        file.read(0, len(data))


def test_a_file_that_grew_is_read_to_its_new_end(tmp_path):
    write_atomically(str(tmp_path / "a"), b"a", 0o644)
    file = LocalFile(str(tmp_path / "a"))
    with (tmp_path / "a").open("ab") as out:
        out.write(b"b")
    assert file.read(0, 2) == b"ab"


def test_windows_read_ahead(tmp_path):
    write_atomically(str(tmp_path / "a"), bytes(range(200)), 0o644)
    window = Window(LocalFile(str(tmp_path / "a")), 50)
    for offset, size in ((0, 10), (10, 40), (45, 10), (0, 200), (195, 5), (3, 1)):
        assert window.read(offset, size) == bytes(range(offset, offset + size))


def test_at_most_so_many_files_are_open(tmp_path):
    keep_open.cache_clear()
    limit = keep_open.cache_info().maxsize
    paths = numbered(tmp_path, limit + 40)
    before = descriptors()
    held = keep_open(open_file, paths[0])
    for number, path in enumerate(paths):
        assert keep_open(open_file, path).read(0, 1) == bytes([number % 256])
    assert descriptors() == before + limit + 1
    assert held.read(0, 1) == b"\0"  # closed with its last reader only
    assert keep_open(open_file, paths[-1]) is keep_open(open_file, paths[-1])
    del held
    keep_open.cache_clear()
    assert descriptors() == before


def test_the_limit_of_the_system_is_lived_with(tmp_path):
    paths = numbered(tmp_path, 60)
    keep_open.cache_clear()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 30, hard))
    try:
        for n, path in enumerate(paths):
            assert keep_open(open_file, path).read(0, 1) == bytes([n])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_threads_share_files_that_are_closed_under_way(tmp_path, monkeypatch):
    paths = numbered(tmp_path, 40)
    monkeypatch.setattr(local, "keep_open", lru_cache(maxsize=3)(keep_open.__wrapped__))
    wrong = []

    def run(start):
        for step in range(2000):
            n = (start * 7 + step * 11) % 40
            if local.keep_open(open_file, paths[n]).read(0, 100) != bytes([n]) * 100:
                wrong.append(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def child(path, queue):
    queue.put(keep_open(open_file, path).read(0, 1))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_reads_the_same(tmp_path):
    paths = numbered(tmp_path, 20)
    held = [keep_open(open_file, path) for path in paths]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(paths[3], queue))
    process.start()
    data = queue.get(timeout=30)
    process.join(30)
    assert data == b"\3"
    assert process.exitcode == 0
    assert [file.read(0, 1) for file in held] == [bytes([n]) for n in range(20)]
    assert keep_open(open_file, paths[3]) is held[3]


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, problem in ((".", "not a regular"), ("pipe", "not a regular"), ("x", "cannot be op")):
        with pytest.raises(StructureError, match=problem):
            open_file(str(tmp_path / name))


def test_writing_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "a"
    write_atomically(str(path), b"old", 0o755)
    assert path.stat().st_mode & 0o777 == 0o644
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_atomically(str(path), b"new", 0o644)
    assert [file.name for file in path.parent.iterdir()] == ["a"]
    assert path.read_bytes() == b"old"
