"""What a run says of its object stores is what they were asked for."""

from __future__ import annotations

import logging
from itertools import islice

import pytest

from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.loading import reports
from energy_data.remote.client import client_of

from . import data
from .test_streams import loader

COUNT = 800
EPOCH = COUNT // 8  # micro-batches
OPENED = 32 << 17  # bytes of a file, at most, that are read when it is opened


@pytest.fixture
def pages(http):
    """The URL of samples that are dealt to the lanes by sequences, and their bytes."""
    path = http.folder / "pages.jsonl"
    path.write_text("".join(f'{{"n": {n}, "text": "{"x" * 20_000}"}}\n' for n in range(COUNT)))
    open_source(path)
    return f"{http.url}/pages.jsonl", path.stat().st_size


def ranges_of(http, path):
    lines = [line["range"] for line in http.requests() if line["path"] == path and line["range"]]
    pairs = [line.removeprefix("bytes=").split("-") for line in lines]
    return [int(end) + 1 - int(begin) for begin, end in pairs]


def only_leaf(one):
    (leaf,) = one.stats().leaves.values()
    return leaf


@pytest.mark.parametrize("workers", [0, 1])
def test_bytes_and_requests_are_those_that_the_server_has_seen(workers, http, own_cache, pages):
    url, size = pages
    with loader(url, workers=workers) as one:
        http.forget()
        batches = iter(one)
        for _ in islice(batches, EPOCH):
            pass
        seen = ranges_of(http, "/pages.jsonl")
        reported = only_leaf(one).requests
        for _ in islice(batches, 5000 * workers):  # they report now and then
            if (reported := only_leaf(one).requests) >= len(seen):
                break
        assert reported == len(seen)
        leaf = only_leaf(one)
        assert (leaf.fetched_bytes, leaf.requests, leaf.retries) == (sum(seen), len(seen), 0)
        assert leaf.fetched_bytes + OPENED >= size
        scalars, (name,) = one.stats().scalars(), one.stats().leaves
    assert scalars[f"data/fetched_bytes/{name}"] == sum(seen)


def test_what_another_run_has_fetched_counts_as_bytes_of_the_cache(http, own_cache, pages):
    url, size = pages
    for _ in range(2):
        with loader(url) as one:
            for _ in islice(one, EPOCH):
                pass
            leaf = only_leaf(one)
    assert (leaf.fetched_bytes, leaf.requests) == (0, 0)
    assert size <= leaf.cached_bytes < 1.2 * size  # two lanes need some sequences


def test_two_ranks_count_each_request_once(http, own_cache, pages):
    url, size = pages
    with loader(url, rank=0, ranks=2) as one, loader(url, rank=1, ranks=2) as other:
        http.forget()
        for loaded in (one, other):
            for _ in islice(loaded, EPOCH // 2):
                pass
        both, seen = [only_leaf(one), only_leaf(other)], ranges_of(http, "/pages.jsonl")
        assert sum(leaf.fetched_bytes for leaf in both) == sum(seen) > size / 2
        assert sum(leaf.requests for leaf in both) == len(seen)


def test_retries_are_those_of_the_leaf(http, own_cache, pages):
    url, _ = pages
    with loader(url) as one:
        http.answers(unavailable=0.1)
        before = client_of(str(own_cache)).stats()["retries"]
        for _ in islice(one, EPOCH):
            pass
        assert only_leaf(one).retries == client_of(str(own_cache)).stats()["retries"] - before > 0


def test_leaves_on_a_disk_have_no_numbers_of_stores(tmp_path):
    data.jsonl(tmp_path / "x.jsonl")
    with loader(tmp_path / "x.jsonl") as one:
        for _ in islice(one, 3):
            pass
        leaf, scalars = only_leaf(one), one.stats().scalars()
    assert (leaf.fetched_bytes, leaf.requests, leaf.store_wait_s) == (None, None, None)
    assert not [name for name in scalars if "request" in name]


def test_a_join_counts_what_its_members_wait_for(http, own_cache, tmp_path):
    for name in ("tars", "others"):
        data.tars(http.folder / name)
        prepare(http.folder / name, workers=1, force=True)
    meta = tmp_path / "meta.yaml"
    members = [f"{{path: {http.url}/{name}}}" for name in ("tars", "others")]
    meta.write_text(f"splits: {{train: {{join: [{', '.join(members)}], id: joined}}}}")
    with loader(meta) as one:
        for _ in islice(one, 4):
            pass
        leaf = one.stats().leaves["joined"]
    assert leaf.fetched_bytes + leaf.cached_bytes >= leaf.bytes > 0
    assert leaf.store_wait_s > 0


def test_a_run_that_waits_for_a_store_says_so(http, own_cache, pages, caplog, monkeypatch):
    url, _ = pages
    monkeypatch.setattr(reports, "_WINDOW_S", 0.05)
    caplog.set_level(logging.INFO, "energy_data.loading.reports")
    with loader(url) as one:
        http.answers(latency=0.1)
        for _ in islice(one, EPOCH):
            pass
        leaf, name = only_leaf(one), next(iter(one.stats().leaves))
    assert leaf.store_wait_s > 0.05
    (line,) = [line for line in caplog.messages if "so far" in line]
    assert line.startswith(f"waiting for an object store leaf {name} (")
    assert "bytes in" in line
