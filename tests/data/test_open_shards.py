"""A process has a bounded number of shards open, and keeps those it uses."""

from __future__ import annotations

import os
import threading
from functools import lru_cache

import numpy as np
import pytest
from tars import dataset

from energy_data.data.registry import open_source
from energy_data.data.tar import index as tar_index

MOST, SHARDS, SAMPLES = 4, 12, 5


@pytest.fixture
def opened(monkeypatch):
    """The shards that were opened, again and again. At most `MOST` may be open."""
    found = []
    really = tar_index._open_shard.__wrapped__

    def open_shard(tar, *facts):
        found.append(int(tar.rpartition("-")[2].removesuffix(".tar")))
        return really(tar, *facts)

    monkeypatch.setattr(tar_index, "_open_shard", lru_cache(MOST)(open_shard))
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
    return tar_index._open_shard.cache_info().currsize


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
