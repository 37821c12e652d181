"""Cache pools: the same files, sooner; and nothing left behind."""

from __future__ import annotations

import gc
import pickle
import threading
from pathlib import Path

import pytest

from energy_data.core.sample import SampleSource
from energy_data.data.files.cache import DirectLazy, FileStoreCachePool, MockLazy, NoCachePool
from energy_data.data.files.stores import DecodeFileStore, FileStore, SystemFileStore
from energy_data.errors import SpecError


class Counted(FileStore[bytes]):
    """Files that say how often they were read."""

    def __init__(self):
        self.reads, self.lock = [], threading.Lock()

    def __getitem__(self, key):
        with self.lock:
            self.reads.append(key)
        if key == "missing":
            raise KeyError(key)
        return f"file {key}".encode(), SampleSource("d", "s", key)

    def get_path(self):
        return "counted"


class Upper:
    def decode(self, fname, data):
        return fname, data.decode().upper()


@pytest.fixture(params=["none", "raw", "pickle"])
def pool(request, tmp_path):
    if request.param == "none":
        yield NoCachePool()
        return
    made = FileStoreCachePool(parent_cache_dir=tmp_path / "not/there", method=request.param)
    yield made
    made.close()
    assert not list(tmp_path.glob("not/there/*"))


def test_files_come_as_from_the_store_with_a_note_in_the_sample(pool):
    store, sample = Counted(), {}
    lazy = pool.get_lazy(store, "a")
    assert lazy.get(sample) == b"file a"
    assert lazy.get() == b"file a"
    assert pool.get(store, "b", sample) == b"file b"
    assert [source.index for source in sample["__sources__"]] == ["a", "b"]
    assert sorted(store.reads) == ["a", "b"]


def test_decoded_stores_give_decoded_files(pool):
    store = DecodeFileStore(Counted(), decoder=Upper())
    assert pool.get_lazy(store, "a").get() == ("a", "FILE A")


def test_a_file_that_cannot_be_read_raises_where_it_is_needed(pool):
    lazy = pool.get_lazy(Counted(), "missing")
    with pytest.raises(KeyError, match="missing"):
        lazy.get()


def test_values_can_be_put_away(pool):
    assert pool.to_cache({"a": 1}, "name").get() == {"a": 1}


def test_a_file_asked_for_twice_is_read_once_and_gone_after_the_last(tmp_path):
    pool, store = FileStoreCachePool(parent_cache_dir=tmp_path), Counted()
    first, second = pool.get_lazy(store, "a"), pool.get_lazy(store, "a")
    assert first == second
    assert first.get() == b"file a"
    assert len(list(tmp_path.glob("*/*"))) == 1
    del second
    gc.collect()
    assert not list(tmp_path.glob("*/*"))
    assert store.reads == ["a"]
    pool.close()


@pytest.mark.parametrize("full", [{"max_cache_size_gbytes": 0}, {"max_cache_count": 0}])
def test_what_has_no_room_is_read_when_it_is_needed(tmp_path, full):
    pool, store = FileStoreCachePool(parent_cache_dir=tmp_path, **full), Counted()
    assert pool.get_lazy(store, "a").get() == b"file a"
    assert pool.to_cache([1], "x").get() == [1]
    assert not list(tmp_path.glob("*/*"))
    pool.close()


def test_a_pool_is_pickled_as_its_options():
    pool = pickle.loads(pickle.dumps(FileStoreCachePool(num_workers=3)))
    assert pool.num_workers == 3
    assert pool._folder is None


def test_a_method_that_is_not_known_is_refused():
    with pytest.raises(SpecError, match="method must be 'raw' or 'pickle', got 'zip'"):
        FileStoreCachePool(method="zip")


def test_lazy_files_are_equal_by_store_and_name(tmp_path):
    store, pool = SystemFileStore(tmp_path), NoCachePool()
    Path(tmp_path / "a").write_bytes(b"x")
    one, other = pool.get_lazy(store, "a"), DirectLazy(ds=store, fname="a", pool=pool)
    assert one == other
    assert len({one, other, MockLazy("a", str), MockLazy("a", str)}) == 2
    assert MockLazy("a", str.upper).get() == "A"
