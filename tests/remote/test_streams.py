"""Runs over object stores return the batches of runs over the same files, whatever fails."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from itertools import islice

import pytest

from energy_data import WorkerConfig, get_loader, get_train_dataset
from energy_data.data.files.recent import RECENT
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.errors import StructureError
from energy_data.remote.cache_space import merged
from energy_data.remote.client import FetchClient, client_of

from . import data
from .conftest import KEY_ID, SECRET, fetchers
from .test_sources import upload

YAML = """
splits:
  train:
    blend:
      - {path: x.jsonl, weight: 2}
      - {path: tars, weight: 1, id: tars}
      - {path: x.parquet, weight: 1, columns: [text]}
"""


def make(folder):
    """A metadataset next to its datasets."""
    data.jsonl(folder / "x.jsonl")
    data.tars(folder / "tars")
    data.parquet(folder / "x.parquet")
    (folder / "meta.yaml").write_text(YAML)
    for name in ("x.jsonl", "tars"):
        open_source(folder / name)  # makes the indices
    return folder / "meta.yaml"


def text_of(sample):
    return sample.get("text") or sample.get("txt") or sample["json"]["text"]


def loader(path, *, rank=0, ranks=1, workers=0, together=20, lanes=4, size=8, buffer=40):
    config = WorkerConfig(rank=rank, world_size=ranks, num_workers=workers, lanes=lanes)
    options = {
        "batch_size": size,
        "shuffle_buffer_size": buffer,
        "max_samples_per_sequence": together,
    }
    return get_loader(get_train_dataset(path, worker_config=config, **options))


def keys(batches):
    """The keys of batches, with a digest of all that they hold but for the paths of files."""
    return [(batch["__key__"], digest(batch)) for batch in batches]


def digest(batch):
    values = {name: batch[name] for name in sorted(batch) if name != "__sources__"}
    return hashlib.sha256(repr(values).encode()).hexdigest()


def stream(path, count, *, ranks=1, workers=0):
    """The first micro-batches of a run."""
    found = []
    for rank in range(ranks):
        with loader(path, rank=rank, ranks=ranks, workers=workers) as one:
            found.append(keys(islice(one, count // ranks)))
    return [batch for round_ in zip(*found, strict=True) for batch in round_]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return make(tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="module")
def expected(local):
    return stream(local, 120)


@pytest.fixture
def served(http, local):
    """The URL of the same metadataset over HTTP, which lists no folder: one is prepared."""
    make(http.folder)
    prepare(http.folder / "tars", workers=1, force=True)
    http.forget()
    return f"{http.url}/meta.yaml"


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 0), (1, 2)])
def test_a_metadataset_in_a_bucket_has_the_stream_of_its_files(
    ranks, workers, s3, cache, local, expected
):
    upload(s3, local.parent, "run")
    assert stream("s3://data/run/meta.yaml", 120, ranks=ranks, workers=workers) == expected


def test_files_of_a_network_file_system_are_read_from_copies(own_cache, local, expected):
    assert stream(f"file://{local}", 120, workers=1) == expected
    copies = [path for path in (own_cache / "energy_data.mirror").rglob("*.tar") if path.is_file()]
    assert copies
    assert all(path.stat().st_blocks for path in copies)


def test_the_stream_is_the_same_if_a_server_fails_now_and_then(http, own_cache, served, expected):
    http.answers(unavailable=0.05, reset=0.05, truncated=0.05, latency=0.002)
    assert stream(served, 120, workers=2) == expected
    assert client_of(str(own_cache)).stats()["retries"] > 0


@pytest.mark.parametrize("times", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_a_fetcher_that_is_killed_is_started_again(times, http, own_cache, served, expected):
    with loader(served) as one:
        batches, found = iter(one), []
        for number in range(120):
            if number % (120 // times) == 1:
                for process in fetchers(own_cache):
                    os.kill(process, signal.SIGKILL)
            found += keys([next(batches)])
    assert found == expected


@pytest.mark.parametrize(
    ("restarts", "ranks"),
    [(True, 4), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((False, 1), (False, 4)))],
)
def test_an_epoch_fetches_each_byte_about_once_through_a_cache_of_half_the_dataset(
    restarts, ranks, http, own_cache, monkeypatch
):
    count, together, size = 16_000, 20, 30
    data.jsonl(http.folder / "half.jsonl", count=count)
    open_source(http.folder / "half.jsonl")  # makes its index
    num_bytes = (http.folder / "half.jsonl").stat().st_size
    monkeypatch.setenv("ENERGY_DATA_CACHE_SIZE", str(num_bytes // 2))

    def made():
        source = f"{http.url}/half.jsonl"
        return [loader(source, rank=n, ranks=ranks, together=together, size=size)
                for n in range(ranks)]  # fmt: skip

    loaders = made()
    for _ in range(2):
        play(loaders, count // size // 3)  # in all, what is read ahead is of one epoch
        if restarts:
            states, loaders = [one.state_dict() for one in loaders], made()
            for one, state in zip(loaders, states, strict=True):
                one.load_state_dict(state)
    ranges = fetched(http, "/half.jsonl")
    ranges = [one for one in ranges if size_of([one]) != 4096]  # those of the fingerprint
    once = merged(("", *one) for one in ranges)
    twice = size_of(ranges) - sum(end - begin for _, begin, end in once)
    assert twice <= 0.02 * num_bytes
    assert len(ranges) <= 1.05 * count / together
    assert client_of(str(own_cache)).stats()["used"] <= num_bytes // 2


def test_large_row_groups_are_fetched_once_and_decoded_in_pieces(http, own_cache):
    path = http.folder / "pages.parquet"
    data.large_groups(path, 640, per_group=160)
    (http.folder / "pages.yaml").write_text("splits: {train: {path: pages.parquet, id: pages}}")
    expected = stream(http.folder / "pages.yaml", 80)
    RECENT.clear()
    begun = RECENT.num_made
    assert stream(f"{http.url}/pages.yaml", 80) == expected
    assert size_of(fetched(http, "/pages.parquet")) <= 1.05 * path.stat().st_size
    assert RECENT.num_made - begun <= 4 * 3 + 4 * 3  # pieces, and those before a lane's share


def play(loaders, count):
    """Draw `count` micro-batches of loaders that take turns."""
    streams = [iter(one) for one in loaders]
    for number in range(count):
        next(streams[number % len(streams)])


def size_of(ranges):
    return sum(end - begin for begin, end in ranges)


def fetched(http, path):
    """The bytes that were asked for, request by request."""
    ranges = [line["range"].removeprefix("bytes=").split("-") for line in http.requests()
              if line["range"] and line["path"] == path]  # fmt: skip
    return [(int(begin), int(end) + 1) for begin, end in ranges]


def test_many_shards_are_opened_with_few_waits(http, own_cache, monkeypatch):
    data.tars(http.folder / "many", per_shard=10)
    prepare(http.folder / "many", workers=1)
    waits, wait = [], FetchClient.wait

    def counted(self, owner, ranges):
        took = wait(self, owner, ranges)
        waits.extend([owner] * any(one.requests for one in took.values()))
        return took

    source = open_source(f"{http.url}/many")
    monkeypatch.setattr(FetchClient, "wait", counted)
    assert source.fingerprint
    assert len(waits) == 1
    with loader(f"{http.url}/many", together=10, lanes=1) as run:
        next(iter(run))
    assert len({line["path"] for line in http.requests() if line["path"].endswith(".tar")}) > 8
    assert len(waits) <= 4  # for the fingerprint, indices, ends, and samples


def test_what_is_in_the_cache_is_not_fetched_again(http, own_cache, served):
    first = stream(served, 60)
    http.forget()
    assert stream(served, 60) == first
    assert {line["path"] for line in http.requests()} <= {"/meta.yaml", "/tars/.nv-meta/.info.json"}


def test_a_cache_that_is_too_small_is_an_error_with_what_is_needed(http, own_cache, monkeypatch):
    monkeypatch.setenv("ENERGY_DATA_CACHE_SIZE", "400kB")
    data.jsonl(http.folder / "large.jsonl", count=4000, size=4000)
    open_source(http.folder / "large.jsonl")
    with (
        loader(f"{http.url}/large.jsonl") as one,
        pytest.raises(StructureError, match=r"may hold 400,000 bytes, but what is read .* has"),
    ):
        list(islice(one, 50))


def test_a_cache_stays_below_its_bound(http, own_cache, monkeypatch):
    monkeypatch.setenv("ENERGY_DATA_CACHE_SIZE", "15MB")
    data.jsonl(http.folder / "long.jsonl", count=2000, size=40_000)  # about 40 MB
    open_source(http.folder / "long.jsonl")
    with loader(f"{http.url}/long.jsonl", together=5) as one:
        seen = keys(islice(one, 250))
        assert client_of(str(own_cache)).stats()["used"] <= 15_000_000
        blocks = sum(file.stat().st_blocks for file in own_cache.rglob("*") if file.is_file())
    assert len({key for batch, _ in seen for key in batch}) > 1950
    assert blocks * 512 < 17_000_000


def test_credentials_are_nowhere_in_what_a_run_leaves(s3, own_cache, local, caplog):
    upload(s3, local.parent, "secret")
    with loader("s3://data/secret/meta.yaml", workers=1) as one:
        list(islice(one, 4))
        state = json.dumps(one.state_dict())
    left = [file.read_bytes() for file in own_cache.rglob("*") if file.is_file()]
    for text in (state.encode(), caplog.text.encode(), *left):
        assert SECRET.encode() not in text
        assert KEY_ID.encode() not in text
