"""Datasets in object stores have the samples of the same files on a disk."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.errors import SpecError, StructureError

from . import data

FILES = {
    "x.jsonl": data.jsonl,
    "x.parquet": data.parquet,
    "large.parquet": data.large_groups,
    "x.arrow": data.arrow,
    "x.npy": data.tokens,
    "mds": data.mds,
}


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        names = one.keys() - {"__sources__"}
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in names)
    return bool(one == other)


def check_equal(local, remote):
    assert len(local) == len(remote)
    assert local.fingerprint == remote.fingerprint
    indices = np.random.default_rng(0).permutation(len(local))[:150]
    for one, other in zip(local.read(indices), remote.read(indices), strict=True):
        assert equal(one, other)


@pytest.mark.parametrize("name", FILES)
def test_a_format_reads_over_http_as_from_disk(name, http, cache):
    FILES[name](http.folder / name)
    check_equal(open_source(http.folder / name), open_source(f"{http.url}/{name}"))


def test_a_prepared_folder_reads_over_http_which_lists_nothing(http, cache):
    data.tars(http.folder / "prepared")
    prepare(http.folder / "prepared", workers=1)
    check_equal(open_source(http.folder / "prepared"), open_source(f"{http.url}/prepared"))


@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_folder_of_tars_reads_from_s3(is_prepared, s3, cache, tmp_path):
    data.tars(tmp_path / "tars")
    if is_prepared:
        prepare(tmp_path / "tars", workers=1)
    prefix = f"tars-{is_prepared}"
    upload(s3, tmp_path / "tars", prefix)
    remote = open_source(f"s3://data/{prefix}")
    assert remote.read(np.array([7]))[0]["__sources__"][0].dataset == f"s3://data/{prefix}"
    check_equal(open_source(tmp_path / "tars"), remote)


def test_a_pattern_of_objects_is_one_dataset(s3, cache, tmp_path):
    data.tars(tmp_path / "tars")
    upload(s3, tmp_path / "tars", "pattern")
    assert len(open_source("s3://data/pattern/{00000..00100..100}.tar")) == 200
    assert len(open_source("s3://data/pattern/*.tar")) == 400


def test_what_is_not_there_is_an_error_with_its_url(http, s3, cache):
    for url in (f"{http.url}/none.jsonl", "s3://data/none", "s3://data/none.tar"):
        with pytest.raises(SpecError, match=f"{url}: there is no such object or folder"):
            open_source(url)


def test_a_server_that_fails_is_an_error_that_says_how_often_it_was_tried(
    http, own_cache, monkeypatch
):
    monkeypatch.setenv("ENERGY_DATA_RETRY_SECONDS", "0.5")
    data.jsonl(http.folder / "bad.jsonl")
    open_source(http.folder / "bad.jsonl")  # makes its index
    source = open_source(f"{http.url}/bad.jsonl")
    http.answers(unavailable=1)
    with pytest.raises(StructureError, match=r"bad\.jsonl: it cannot be read: \d+ attempts in"):
        source.read(np.arange(len(source)))


def test_a_server_without_ranges_is_an_error_at_once(http, cache):
    data.jsonl(http.folder / "whole.jsonl")
    http.answers(whole=True)
    with pytest.raises(StructureError, match="does not answer requests for ranges of bytes"):
        open_source(f"{http.url}/whole.jsonl")
    assert len(http.requests()) == 1


def test_an_object_that_was_changed_is_an_error(http, cache):
    data.jsonl(http.folder / "changed.jsonl", size=90_000)
    open_source(http.folder / "changed.jsonl")  # makes its index
    source = open_source(f"{http.url}/changed.jsonl")
    data.jsonl(http.folder / "changed.jsonl", size=89_000)
    with pytest.raises(StructureError, match=r"changed\.jsonl: the object was changed"):
        source.read(np.arange(len(source)))


@pytest.mark.parametrize("key", ["../x.jsonl", "a/../../x.jsonl", "a\0b.jsonl"])
def test_a_key_that_leaves_its_folder_is_refused(key, cache):
    with pytest.raises(SpecError, match="is no path of a file"):
        open_source(f"s3://data/{key}")


def test_credentials_in_a_url_are_refused_and_not_shown(cache):
    with pytest.raises(SpecError, match="has no credentials") as caught:
        open_source("https://user:secret@example.org/x.jsonl?signature=secret")
    assert "secret" not in str(caught.value)


def upload(s3, folder, prefix):
    """Put the files of a folder into the bucket."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            s3.upload_file(str(file), "data", f"{prefix}/{file.relative_to(folder)}")
