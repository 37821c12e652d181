"""A process has a bounded number of shards open, and keeps those it uses."""

from __future__ import annotations

import os
import resource
import threading
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from tars import dataset

from energy_data.data import shards
from energy_data.data.files import offsets
from energy_data.data.files.local import keep_open
from energy_data.data.registry import open_source
from energy_data.data.tar import native
from energy_data.errors import StructureError

MOST, SHARDS, SAMPLES = 4, 12, 5


@pytest.fixture
def opened(monkeypatch):
    """The shards that were opened, again and again. At most `MOST` may be open."""
    found = []

    def open_block(kind, path, *facts):
        found.append(int(Path(path).stem.rpartition("-")[2]))
        return kind(path, *facts)

    monkeypatch.setattr(shards, "keep_open", lru_cache(MOST)(open_block))
    return found


@pytest.fixture
def source(tmp_path, opened):
    """A dataset of more shards than may be open; nothing else is open."""
    return open_source(dataset(tmp_path, shards=SHARDS, samples=SAMPLES))


def read(source, *numbers):
    """Read the first sample of each of some shards, and check that it is that."""
    samples = source.read(np.array(numbers) * SAMPLES)
    assert [sample["json"]["number"] for sample in samples] == [n * SAMPLES for n in numbers]


def num_open():
    return shards.keep_open.cache_info().currsize


def test_no_more_are_open_than_may_be_also_if_one_block_needs_more(source):
    for turn in range(3):
        read(source, *range(turn, SHARDS))
        assert num_open() == MOST


def test_what_is_used_again_and_again_stays_open(source, opened):
    read(source, 0)
    for other in range(1, SHARDS):
        read(source, 0, other)
    assert opened == list(range(SHARDS))
    assert num_open() == MOST


def test_two_sources_of_one_dataset_open_a_shard_once(source, opened):
    read(source, 3)
    read(open_source(source.path), 3)
    assert opened == [3]


def test_threads_may_read_more_shards_than_may_be_open(source):
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(300):
                read(source, *rng.integers(0, SHARDS, 3).tolist())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test fails
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert num_open() <= MOST


def test_a_fork_reads_the_shards_that_are_open_and_others(source):
    read(source, 0, 1)
    child = os.fork()
    if not child:
        try:
            read(source, *range(SHARDS))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    read(source, 0, 1)


@pytest.mark.parametrize("compiled", [True, False])
def test_blocks_of_an_index_are_read_as_needed_and_change_nothing(tmp_path, monkeypatch, compiled):
    if not compiled:
        monkeypatch.setattr(native, "TAR", None)
    source = open_source(dataset(tmp_path, shards=3, samples=11), subset=(2, 31))
    wanted = np.random.default_rng(1).permutation(29)
    expected = source.read(wanted)
    for module in (shards, offsets):
        monkeypatch.setattr(module, "BLOCK_ROWS", 4)
    keep_open.cache_clear()
    again = open_source(source.path, subset=(2, 31))
    assert again.read(wanted) == expected
    assert [len(again.layout.open(1, row).offsets) - 1 for row in (0, 5, 10)] == [4, 4, 3]
    table = shards.offsets_of(again.layout.open, 1, 11)
    assert table.tolist() == np.fromfile(tmp_path / "shard-001.tar.idx", "<u8").tolist()
    for index in tmp_path.glob("*.idx"):
        os.truncate(index, 16)
    with pytest.raises(StructureError, match=r"its index .* samples need"):
        open_source(source.path, subset=(2, 31)).read(wanted)


def test_shards_are_closed_where_the_system_allows_no_more(tmp_path):
    source = open_source(dataset(tmp_path, shards=40, samples=1))
    keep_open.cache_clear()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
    try:
        assert len(source.read(np.arange(16))) == 16
        assert len(source.read(np.arange(16, 32))) == 16
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
