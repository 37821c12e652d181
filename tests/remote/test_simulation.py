"""What a simulated run asks of a store, and how long it waits, is what a real one does."""

from __future__ import annotations

import asyncio
import time
from itertools import islice

import pytest

from energy_data.cli.plan import stream
from energy_data.config.load import load
from energy_data.core.context import Context
from energy_data.data.jsonl import JsonlSource
from energy_data.data.registry import open_source
from energy_data.loading.simulation import ANY_SIZE, SimulatedRun
from energy_data.loading.store_advice import advice
from energy_data.remote.model import Link, ModelFetcher, ModelLoop, model_path

from .test_statistics import only_leaf
from .test_streams import loader

LINE = 100  # bytes of a sample


def named(folder, path):
    """A metadataset with one leaf, whose order depends on its name."""
    folder.joinpath("meta.yaml").write_text(f"splits: {{train: {{path: '{path}', id: pages}}}}")
    return folder / "meta.yaml"


def lines(path, count):
    path.write_text("".join(f'{{"n": "{n:0{LINE - 10}}"}}\n' for n in range(count)))
    open_source(path)


def simulated(path, *, batch_size=8, buffer=40, together=20, lanes=4, link=None, **run):
    spec = stream(
        load(str(path)), "train", run=Context(lanes=lanes), batch_size=batch_size,
        shuffle_buffer_size=buffer, max_samples_per_sequence=together,
    )  # fmt: skip
    link = link or Link(latency=0.1, bandwidth=20_000.0)
    return SimulatedRun(spec=spec, lanes=lanes, link=link, **{"cache": ANY_SIZE, **run})


@pytest.fixture
def file(tmp_path):
    """640 samples, 64 of which are read together where nothing is shuffled."""
    lines(tmp_path / "x.jsonl", 640)
    return tmp_path / "x.jsonl"


IN_ORDER = {"batch_size": 64, "buffer": 0, "together": 0, "lanes": 1, "batches": 10}
"""A micro-batch is one request of 6400 bytes: 0.32 s at 20 kB/s, after a latency of 0.1 s."""


@pytest.mark.parametrize(("batch_seconds", "wait_s"), [(0.0, 9 * 0.32), (0.2, 9 * 0.12), (0.5, 0)])
def test_waits_are_those_computed_by_hand(batch_seconds, wait_s, file):
    found = simulated(file, **IN_ORDER, batch_seconds=batch_seconds).simulate()
    assert found.start_wait_s == pytest.approx(0.1 + 0.32)
    assert found.wait_s == pytest.approx(wait_s)
    (leaf,) = found.leaves
    assert (leaf.requests, leaf.fetched_bytes, leaf.epoch_bytes) == (10, 64_000, 64_000)
    assert (found.bytes_per_batch, found.ahead_bytes) == (6400, 64_000)


def test_requests_in_flight_bound_a_run_where_the_bandwidth_does_not(tmp_path):
    lines(tmp_path / "x.jsonl", 64 * 60)
    link = Link(latency=1.0, bandwidth=1e12)
    run = simulated(tmp_path / "x.jsonl", link=link, **{**IN_ORDER, "batches": 57, "together": 1})
    assert run.simulate().most_batches_per_second(link) == pytest.approx(1.0)  # 64 of 64 samples


def test_as_many_bytes_are_on_their_way_as_have_arrived(monkeypatch):
    monkeypatch.setattr("energy_data.remote.fetcher._LEAST_AHEAD", 2000)

    async def requests():
        fetcher = ModelFetcher(ANY_SIZE, Link(latency=0.1, bandwidth=1e12))
        ranges = [(model_path("/x"), 1000 * n, 1000 * n + 1000) for n in range(100)]
        fetcher.want(0, "lane", ranges, range(100))
        for _ in range(4):
            await asyncio.sleep(0.09)
            yield fetcher.stats()["requests"]
            await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=ModelLoop) as runner:
        assert runner.run(listed(requests())) == [2, 4, 8, 16]


async def listed(found):
    return [one async for one in found]


def test_a_sequence_of_any_size_is_fetched_ahead(file, monkeypatch):
    monkeypatch.setattr("energy_data.remote.fetcher._LEAST_AHEAD", 1)
    assert simulated(file, **IN_ORDER, batch_seconds=0.5).simulate().wait_s == pytest.approx(0)


def said(run, most=20):
    return " ".join(advice(run, run.simulate(), most))


def test_what_to_change_is_the_limit_that_the_run_meets(file):
    slow = said(simulated(file, **IN_ORDER, batch_seconds=0.2))
    assert "wait 37.5% of their time. The bandwidth is the limit: a node needs 0.03 MB/s" in slow
    fine = said(simulated(file, **IN_ORDER, batch_seconds=0.5))
    assert fine == "In a long run, ranks wait 0.0% of their time."
    link = Link(latency=1.0, bandwidth=1e12)
    late = said(simulated(file, batches=40, together=1, batch_seconds=0.05, link=link), most=1)
    assert "needs 160 requests/s, and 64 at a time of 1,000 ms are 64." in late
    assert "Raise max_samples_per_sequence from 1 to 4." in late


def test_a_cache_that_is_too_small_is_told_what_it_must_have(file):
    run = simulated(file, batches=120, cache=20_000)
    found = run.simulate()
    assert "Give it 64,000 bytes at least" in said(run)
    assert found.refused is not None
    assert simulated(file, batches=120, cache=found.window_bytes).simulate().refused is None


def test_ranks_of_a_node_share_what_they_fetch(file):
    one, both = (
        simulated(file, batches=20, lanes=4, ranks=2, ranks_per_node=count).simulate()
        for count in (1, 2)
    )
    assert [leaf.drawn for leaf in both.leaves] == [320]
    assert [leaf.fetched_bytes for leaf in both.leaves] <= [64_000]
    assert [leaf.drawn for leaf in one.leaves] == [160]


@pytest.mark.parametrize(("together", "buffer"), [(20, 40), (5, 100), (0, 0)])
def test_requests_and_bytes_are_those_of_a_real_run(
    together, buffer, http, own_cache, monkeypatch, tmp_path
):
    monkeypatch.setattr(JsonlSource, "fingerprint", "0" * 16)  # what opening reads is not counted
    monkeypatch.setattr(JsonlSource, "fingerprint_ranges", lambda _: [])
    lines(http.folder / "same.jsonl", 1200)
    meta = named(tmp_path, f"{http.url}/same.jsonl")
    with loader(meta, together=together, buffer=buffer) as one:
        for _ in islice(one, 130):
            pass
        real = only_leaf(one)
    (leaf,) = (
        simulated(
            named(tmp_path, http.folder / "same.jsonl"),
            together=together,
            buffer=buffer,
            batches=130,
        )
        .simulate()
        .leaves
    )
    assert leaf.requests > 15
    assert (leaf.requests, leaf.fetched_bytes, leaf.cached_bytes, leaf.drawn) == (
        real.requests, real.fetched_bytes, real.cached_bytes, real.drawn
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("batch_seconds", [0.0, 0.02, 0.06])
def test_waits_are_about_those_of_a_real_run(batch_seconds, http, own_cache, monkeypatch, tmp_path):
    monkeypatch.setattr(JsonlSource, "fingerprint", "0" * 16)
    monkeypatch.setattr(JsonlSource, "fingerprint_ranges", lambda _: [])
    lines(http.folder / "slow.jsonl", 40_000)
    latency, batches = 0.5, 200
    with loader(named(tmp_path, f"{http.url}/slow.jsonl"), together=2) as one:
        http.answers(latency=latency)
        waited, stream_ = [], iter(one)
        for _ in range(batches):
            began = time.perf_counter()
            next(stream_)
            waited.append(time.perf_counter() - began)
            time.sleep(batch_seconds)
    found = simulated(
        named(tmp_path, http.folder / "slow.jsonl"), together=2, batches=batches,
        batch_seconds=batch_seconds, link=Link(latency=latency, bandwidth=1e9),
    ).simulate()  # fmt: skip
    real = sum(seconds for seconds in waited if seconds > 0.01)  # others are no waits
    assert real / 1.5 < found.start_wait_s + found.wait_s < real * 1.5
