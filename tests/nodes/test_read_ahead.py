"""Lanes say what they will read, and wait for it: all that they read was waited for."""

from __future__ import annotations

import gc
import json
from contextlib import suppress
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.test_sources import PARTS, SOURCES, tree
from hostile_cache import HostileCache
from loading.runs import loaders_of, run

from energy_data.core.context import Context
from energy_data.data.files.local import keep_open
from energy_data.data.registry import open_source
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.leaf import Leaf, Shuffle
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import LeafSpec, ReferencesSpec
from energy_data.remote import client

N, LENGTH, BATCH, LANES = 4800, 20, 10, 8


@pytest.fixture
def cache(tmp_path, monkeypatch):
    found = HostileCache(tmp_path / "cache")
    monkeypatch.setenv("ENERGY_DATA_CACHE", found.root)  # no test may reach a store
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(client._CONNECTIONS, "by_root", {found.root: found})
    return found


@pytest.fixture
def lines(tmp_path, cache):
    """The paths of a file of many lines in the cache, and of the same on the disk."""
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps({"n": f"{n:06d}"}) + "\n" for n in range(N)))
    open_source(path)  # makes its index
    return cache.add(path), path


def spec_of(source, *, deal=0, epochs=1, drop_last=False):
    shuffle = Shuffle(buffer_size=100, sequence_length=LENGTH, parallel_sequences=4)
    leaf = LeafSpec(Leaf(id="x", source=source, epochs=epochs))
    references = ReferencesSpec(
        of=leaf, shuffle=shuffle, batch=BATCH, deal=deal, drop_last=drop_last
    )
    return BatchSpec(
        of=ReadSpec(of=references), batch_size=BATCH, collate=keys_of, aligned=deal > 0
    )


def keys_of(batch):
    return tuple((sample["__key__"], sample.get("json", {}).get("n")) for sample in batch)


@pytest.mark.parametrize("name", SOURCES | PARTS)
def test_a_remote_dataset_gives_the_batches_of_a_local_one(name, tmp_path, cache, monkeypatch):
    monkeypatch.setattr("energy_data.nodes.read_ahead._MOST_BYTES", 64)  # as if they were large
    for module in ("part", "tokens.source"):
        monkeypatch.setattr(f"energy_data.data.{module}.NEAR", 0)
    write, keys = (SOURCES | PARTS)[name]
    (tmp_path / "files").mkdir()
    path = write(tmp_path / "files")
    if path.suffix in (".json", ".bin", ".ds"):
        path = path.parent / path.name
    expected = run(loaders_of(tree(open_source(path, **keys)), 1), rounds=48)
    mirrored = cache.add(path.parent) / path.name if path.is_file() else cache.add(path)
    source = open_source(mirrored, **keys)
    (loader,) = loaders_of(tree(source), 1)
    found, stream = {}, iter(loader)
    for _ in range(48):
        batch = next(stream)
        found[loader.last_batch] = batch
        keep_open.cache_clear()  # as if many other files had been opened
    assert found == expected
    assert cache.of_lanes()


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_in_an_epoch_each_sequence_is_one_request_on_any_number_of_nodes(ranks, lines, cache):
    source, fetched = open_source(lines[0]), []
    assert source.fingerprint  # reads some of the file, once
    for loader in loaders_of(spec_of(source), ranks, LANES):
        cache.fetched.clear()  # each has a cache of its own
        for _ in islice(loader, N // BATCH // ranks):
            pass
        fetched += cache.fetched
    assert N // LENGTH <= len(fetched) <= 1.05 * N // LENGTH
    assert size_of(fetched) <= 1.05 * source.total_cost("bytes")


@pytest.mark.parametrize("ranks", [1, 4])
def test_row_groups_are_fetched_once_where_files_end_with_shorter_ones(ranks, tmp_path, cache):
    for n in range(12):
        table = pa.table({"n": np.random.default_rng(n).integers(0, 1 << 60, 1050)})
        (tmp_path / "pages").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / f"pages/{n:02}.parquet", row_group_size=100)
    source, fetched = open_source(cache.add(tmp_path / "pages")), 0
    for loader in loaders_of(spec_of(source), ranks, LANES):
        cache.fetched.clear()  # each has a cache of its own
        for _ in islice(loader, len(source) // BATCH // ranks):
            pass
        fetched += size_of(cache.fetched)
    groups = size_of(source.ranges(0, len(source)))
    assert fetched < 1.15 * groups  # lanes share the groups where their parts meet


def size_of(ranges):
    return sum(end - begin for _, begin, end in ranges)


def test_what_is_waited_for_was_wanted_before_in_the_order_of_use(lines, cache):
    (loader,) = loaders_of(spec_of(open_source(lines[0])), 1, LANES)
    stream = iter(loader)
    for _ in range(200):
        next(stream)
    assert len({owner for owner, _ in cache.of_lanes()}) == LANES
    for owner, ranges, when in cache.wants:
        if "lane" in owner and ranges:
            assert list(when) == sorted(when)
            assert len(set(ranges)) == len(ranges)
    wanted = {(owner, one) for owner, ranges, _ in cache.wants for one in ranges}
    assert {(owner, one) for owner, ranges in cache.of_lanes() for one in ranges} <= wanted
    assert cache.unplanned() == []


def test_a_large_sequence_is_waited_for_in_pieces(lines, cache, monkeypatch):
    line = len(b'{"n": "000000"}\n')
    monkeypatch.setattr("energy_data.nodes.read_ahead._MOST_BYTES", 2 * line)
    source = open_source(lines[0])
    node = spec_of(source).build(Context(lane=3, lanes=LANES))
    (samples,) = node.draw(1).values
    waited = {(begin, end) for _, ranges in cache.of_lanes() for _, begin, end in ranges}
    starts = [int(n) * line for _, n in samples]
    assert waited == {one for one in waited for at in starts if one[0] <= at < one[1]}
    assert len(waited) > 1
    assert all(end - begin <= 2 * line for begin, end in waited)


def test_all_lanes_want_what_they_draw_first_before_one_waits(lines, cache, monkeypatch):
    (loader,) = loaders_of(spec_of(open_source(lines[0])), 1, LANES)
    wait, before = cache.wait, set[str]()

    def noting(owner, ranges):
        before.update(one for one, _, _ in cache.wants) if "lane" in owner and not before else None
        return wait(owner, ranges)

    monkeypatch.setattr(cache, "wait", noting)
    next(iter(loader))
    assert len([owner for owner in before if "lane" in owner]) == LANES


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_pass_that_begins_again_is_looked_up_anew(drop_last, lines, cache):
    source, local = (open_source(one, subset=(0, 1995)) for one in lines)
    specs = [spec_of(one, deal=BATCH, drop_last=drop_last) for one in (source, local)]
    node, expected = (spec.build(Context(lane=3, lanes=64)) for spec in specs)
    for _ in range(3):
        assert passed(node) == passed(expected) != []
    assert cache.unplanned() == []


def passed(node):
    """The batches of one pass of a node, which begins again then."""
    found = []
    with suppress(StopIteration):
        while True:
            found += node.draw(1).values
    node.rewind()
    return found


def test_after_a_restore_it_waits_for_what_it_wanted(lines, cache):
    expected = run(loaders_of(spec_of(open_source(lines[1])), 1, LANES), 60)
    (first,) = loaders_of(spec_of(open_source(lines[0])), 1, LANES)
    assert list(islice(iter(first), 30)) == list(expected.values())[:30]
    state = first.state_dict()
    del cache.waits[:]
    again = loaders_of(spec_of(open_source(lines[0])), 2, LANES)
    for loader in again:
        loader.load_state_dict(state)
    assert run(again, 15) == {number: expected[number] for number in range(30, 60)}
    assert cache.unplanned() == []


def test_loaders_in_one_thread_do_not_replace_what_others_want_and_release_theirs(lines, cache):
    train, val = (loaders_of(spec_of(open_source(lines[0])), 1, LANES)[0] for _ in range(2))
    next(iter(train)), next(iter(val))
    owners = {owner for owner, ranges, _ in cache.wants if ranges}
    assert len(owners) == 2 * LANES
    del train
    gc.collect()
    next(iter(val))
    for _ in range(400):
        next(iter(val))
    assert any(not ranges and owner in owners for owner, ranges, _ in cache.wants)


def test_epochs_that_are_mixed_read_no_sequence_twice(lines, cache, monkeypatch):
    source = open_source(lines[0], subset=(0, N - 7))  # no whole number of sequences
    monkeypatch.setattr(type(source), "fingerprint_ranges", lambda _: [])
    assert source.fingerprint  # reads some of the file, once
    local = open_source(lines[1], subset=(0, N - 7))
    expected = run(loaders_of(spec_of(local, epochs=2), 1, LANES), 2 * N // BATCH)
    cache.fetched.clear()
    assert run(loaders_of(spec_of(source, epochs=2), 1, LANES), 2 * N // BATCH) == expected
    assert size_of(cache.fetched) <= 1.05 * 2 * source.total_cost("bytes")
