"""A process has a bounded number of shards open, and keeps those it uses."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest
from tars import dataset

from energy_data.data.registry import open_source
from energy_data.data.tar import index as tar_index
from energy_data.data.tar.index import known_shard

MOST, SHARDS, SAMPLES = 4, 12, 5


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A dataset of more shards than may be open; nothing else is open."""
    monkeypatch.setattr(tar_index, "_MOST_OPEN", MOST)
    tar_index._SHARDS.after_fork()
    return open_source(dataset(tmp_path, shards=SHARDS, samples=SAMPLES))


def shard(source, number):
    tar = f"{source.part.root}/{source.part.shards[number]}"
    return known_shard(tar, tar + ".idx", SAMPLES)


def open_now(source):
    return {number for number in range(SHARDS) if shard(source, number).shard is not None}


def read(source, *numbers):
    """Read the first sample of each of some shards, and check that it is that."""
    samples = source.read(np.array(numbers) * SAMPLES)
    assert [sample["json"]["number"] for sample in samples] == [n * SAMPLES for n in numbers]


def test_no_more_are_open_than_may_be_also_if_one_block_needs_more(source):
    for turn in range(3):
        read(source, *range(turn, SHARDS))
        assert open_now(source) == set(range(SHARDS - MOST, SHARDS))


def test_what_is_used_again_and_again_stays_open(source):
    read(source, 0)
    kept = shard(source, 0).shard
    for other in range(1, SHARDS):
        read(source, 0, other)
        assert shard(source, 0).shard is kept
    assert len(open_now(source)) == MOST


def test_two_sources_of_one_dataset_open_a_shard_once(source):
    read(source, 3)
    kept = shard(source, 3).shard
    read(open_source(source.path), 3)
    assert shard(source, 3).shard is kept


def test_a_dataset_that_is_gone_is_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(tar_index, "_MOST_OPEN", MOST)
    known = tar_index._SHARDS.known
    gc.collect()
    before = len(known)
    source = open_source(dataset(tmp_path, shards=SHARDS, samples=SAMPLES))
    read(source, *range(SHARDS))
    assert len(known) >= before + MOST
    del source
    assert len(known) <= before + MOST, "those that are open are remembered, no others"


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
    assert len(open_now(source)) <= MOST


def test_a_fork_opens_shards_of_its_own(source):
    read(source, 0, 1)
    child = os.fork()
    if not child:
        try:
            assert not open_now(source)
            read(source, *range(SHARDS))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert open_now(source) == {0, 1}
