"""Sources of batches cross as columns, large bytes beside the pickle; both arrive as they were."""

from __future__ import annotations

import pickle

import pytest

from energy_data.core.sample import SampleSource
from energy_data.loading import columns
from energy_data.loading.columns import with_columns
from energy_data.loading.transport.arena import ArenaReader, ArenaWriter

ONE, TWO = SampleSource("/data/a", "0.tar", 3), SampleSource("/data/b", "1.tar", "key")


@pytest.fixture(params=["compiled", "python"], autouse=True)
def way(request, monkeypatch):
    """All is the same with and without the compiled part."""
    if request.param == "python":
        monkeypatch.setattr(columns, "TAR", None)
    elif columns.TAR is None:
        pytest.skip("installed without a compiler")


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


LARGE = 50_000


def crossed(batch):
    """The batch after its way through an arena, and how many buffers went beside the pickle."""
    writer = ArenaWriter(1 << 24)
    parcel = writer.write(batch)
    return ArenaReader(writer.fd).read(parcel), len(parcel.spans) - (parcel.pickled is None)


@pytest.mark.parametrize(
    ("values", "beside"),
    [
        ([bytes([n]) * LARGE for n in range(8)], 8),
        ([b"a" * LARGE, b"small"], 0),
        ([b"a" * LARGE, "text"], 0),
        ([b"a" * LARGE, bytearray(LARGE)], 0),
        ([b"a" * LARGE] * 3, 0),
        ([b""], 0),
    ],
    ids=["all large", "one small", "one text", "a bytearray", "the same thrice", "empty"],
)
def test_large_bytes_arrive_as_they_were_copied_once_less(values, beside):
    arrived, found = crossed({"data": values, "nested": {}})  # of no usual form: see test_flat.py
    assert arrived["data"] == values
    assert found == beside
    assert list(map(type, arrived["data"])) == list(map(type, values))


def test_one_object_many_times_stays_one():
    arrived, _ = crossed({"data": [b"a" * LARGE] * 3})
    assert len(set(map(id, arrived["data"]))) == 1
