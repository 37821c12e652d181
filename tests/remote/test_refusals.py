"""What a store refuses: missing files that one may not list, expired tokens, and writing."""

from __future__ import annotations

import asyncio

import pytest

from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.errors import SpecError
from energy_data.remote import object_store

from . import data
from .conftest import KEY_ID, SECRET
from .test_prepare import energy_data, run
from .test_sources import check_equal


def test_an_index_that_is_refused_is_missing_if_its_shard_can_be_read(read_only, own_cache):
    data.jsonl(read_only.folder / "data/x.jsonl")
    read_only.answers(missing=403)
    assert len(open_source("s3://data/x.jsonl")) == data.COUNT


def test_a_shard_that_is_refused_is_an_error(read_only, own_cache):
    data.jsonl(read_only.folder / "data/x.jsonl")
    read_only.answers(forbidden="x.jsonl", missing=403)
    with pytest.raises(SpecError, match=r"x\.jsonl: it cannot be read: 4 attempts .* 403"):
        open_source("s3://data/x.jsonl")


@pytest.mark.parametrize("make", [data.tars, data.mds])
def test_a_folder_behind_http_may_lack_files_that_are_refused(make, http, own_cache, tmp_path):
    folder = http.folder / f"lacks-{make.__name__}"
    make(folder)
    if make is data.tars:
        prepare(folder, workers=1, sqlite=False)
    http.answers(missing=403)
    check_equal(open_source(folder), open_source(f"{http.url}/{folder.name}"))


def test_a_folder_whose_shard_is_refused_is_an_error(http, own_cache):
    data.tars(http.folder / "refused")
    prepare(http.folder / "refused", workers=1, sqlite=False)
    http.answers(forbidden="00100.tar", missing=403)
    with pytest.raises(SpecError, match=r"00100\.tar: it cannot be read: .* 403"):
        open_source(f"{http.url}/refused")


def test_a_token_that_expired_is_found_again_where_the_answer_does_not_say_so(
    read_only, monkeypatch
):
    data.jsonl(read_only.folder / "data/x.jsonl")
    ids = iter(["EXPIRED", KEY_ID])

    def provider(*_):
        key_id = next(ids)
        return lambda: {"access_key_id": key_id, "secret_access_key": SECRET, "expires_at": None}

    monkeypatch.setattr(object_store, "_boto_provider", provider)
    read_only.answers(expired="EXPIRED")
    bucket = object_store.Bucket("s3://data", {"endpoint": read_only.url})
    found = asyncio.run(bucket.head("x.jsonl"))
    assert found is not None
    assert found.size == (read_only.folder / "data/x.jsonl").stat().st_size
    assert bucket.retries.total() == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_indices_of_a_bucket_that_is_read_only_are_kept_in_the_cache(workers, read_only, own_cache):
    data.tars(read_only.folder / "data/tars")
    words = ["--num-workers", workers, "--non-interactive"]
    shown = energy_data("prepare", "s3://data/tars", *words)
    assert "it cannot be written: 2 attempts" in shown
    assert "s3://data/tars: 400 samples, which stay one part: their store is read-only." in shown
    read_only.forget()
    assert len(open_source("s3://data/tars")) == 400
    assert [one["path"] for one in read_only.requests() if ".tar" in one["path"]] == []


@pytest.mark.parametrize(
    "words", [["--split-ratio", "1,1"], ["--part", 0, "--of", 2], ["--sample-type", "TextSample"]]
)
def test_what_cannot_be_written_is_an_error_with_what_to_do(words, read_only, own_cache):
    data.tars(read_only.folder / "data/tars")
    code, shown = run("prepare", "s3://data/tars", "--non-interactive", *words)
    assert code == 1
    assert "it cannot be written: 2 attempts" in shown
    assert f"what {words[0]} asks for is written to it. Use credentials that may write" in shown
