"""Sources of batches cross as columns, and arrive as they were."""

from __future__ import annotations

import pickle

import pytest

from energy_data.loader.columns import with_columns
from energy_data.sample import SampleSource

ONE, TWO = SampleSource("/data/a", "0.tar", 3), SampleSource("/data/b", "1.tar", "key")


@pytest.mark.parametrize(
    "sources",
    [
        [(ONE,), (TWO,), (ONE,)],
        [(ONE,)],
        [(ONE, TWO), (TWO,)],
        [(), (ONE,)],
        [],
        [[ONE]],
        [None, (ONE,)],
        [("other",)],
        ((ONE,),),
        None,
    ],
    ids=repr,
)
def test_sources_arrive_as_they_were(sources):
    batch = {"__sources__": sources, "other": 1}
    arrived = pickle.loads(pickle.dumps(with_columns(batch)))
    assert arrived == batch
    assert list(map(type, arrived["__sources__"] or ())) == list(map(type, sources or ()))
    assert batch["__sources__"] is sources, "the batch itself is left alone"


@pytest.mark.parametrize("batch", [{}, [1], None, "text"], ids=repr)
def test_a_batch_without_sources_is_left_alone(batch):
    assert with_columns(batch) is batch


def test_what_arrives_are_sources_again():
    batch = pickle.loads(pickle.dumps(with_columns({"__sources__": [(ONE,), (TWO,)]})))
    assert [source.shard for (source,) in batch["__sources__"]] == ["0.tar", "1.tar"]
    assert {type(source) for (source,) in batch["__sources__"]} == {SampleSource}


def test_many_sources_of_few_shards_take_few_bytes():
    shards = [f"{n}.tar" for n in range(4)]
    sources = [(SampleSource("/data/a", shards[n % 4], n),) for n in range(256)]
    assert len(pickle.dumps(with_columns({"__sources__": sources}))) < 256 * 8
