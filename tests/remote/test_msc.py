"""Stores of NVIDIA's multi-storage-client, read by the real one where it is installed."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec

import pytest

from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.errors import SpecError, StructureError

from . import data
from .test_sources import check_equal, upload
from .test_streams import make, stream

installed = pytest.mark.skipif(find_spec("multistorageclient") is None, reason="not installed")


def profile(path, name, **parts):
    """A configuration of the client with one profile."""
    path.write_text(json.dumps({"profiles": {name: parts}}))
    return str(path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that the profile `ours` reads."""
    files = {"type": "file", "options": {"base_path": str(tmp_path / "ours")}}
    config = profile(tmp_path / "msc.json", "ours", storage_provider=files)
    monkeypatch.setenv("MSC_CONFIG", config)
    (tmp_path / "ours").mkdir()
    return tmp_path / "ours"


@pytest.mark.slow
@installed
def test_a_metadataset_in_a_profile_has_the_stream_of_its_files(folder, own_cache):
    expected = stream(make(folder), 60)
    assert stream("msc://ours/meta.yaml", 60, workers=1) == expected


@pytest.mark.slow
@installed
def test_a_profile_of_s3_has_the_stream_of_its_files(s3, own_cache, tmp_path, monkeypatch):
    bucket = {"base_path": "data/msc", "endpoint_url": s3.meta.endpoint_url}
    keys = {"access_key": "${AWS_ACCESS_KEY_ID}", "secret_key": "${AWS_SECRET_ACCESS_KEY}"}
    config = profile(
        tmp_path / "msc.json", "ours",
        storage_provider={"type": "s3", "options": {**bucket, "region_name": "us-east-1"}},
        credentials_provider={"type": "S3Credentials", "options": keys},
    )  # fmt: skip
    monkeypatch.setenv("MSC_CONFIG", config)
    expected = stream(make(tmp_path / "files"), 60)
    upload(s3, tmp_path / "files", "msc")
    assert stream("msc://ours/meta.yaml", 60) == expected


@pytest.mark.slow
@installed
def test_a_prepared_folder_and_a_pattern_read_as_from_disk(folder, own_cache):
    data.tars(folder / "tars")
    prepare(folder / "tars", workers=1)
    check_equal(open_source(folder / "tars"), open_source("msc://ours/tars"))
    assert len(open_source("msc://ours/tars/{00000..00100..100}.tar")) == 200


@pytest.mark.slow
@installed
def test_an_object_that_was_changed_is_an_error(folder, own_cache):
    data.jsonl(folder / "x.jsonl", size=90_000)
    open_source(folder / "x.jsonl")  # makes its index
    source = open_source("msc://ours/x.jsonl")
    data.jsonl(folder / "x.jsonl", size=89_000)
    os.utime(folder / "x.jsonl", (1, 1))
    with pytest.raises(StructureError, match=r"msc://ours/x\.jsonl: the object was changed"):
        source.read(range(400))


@pytest.mark.slow
@installed
def test_what_is_not_there_is_an_error_with_its_url(folder, own_cache):
    with pytest.raises(SpecError, match="msc://ours/none: there is no such object or folder"):
        open_source("msc://ours/none")
    with pytest.raises(SpecError, match='msc://theirs: Profile "theirs" not found'):
        open_source("msc://theirs/x.jsonl")


@pytest.mark.skipif(find_spec("multistorageclient") is not None, reason="it is installed")
def test_without_the_client_an_error_names_its_package(cache):
    with pytest.raises(SpecError, match="Run: pip install multi-storage-client"):
        open_source("msc://ours/x.jsonl")
