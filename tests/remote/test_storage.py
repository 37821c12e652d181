"""One run reads several stores, each as `storage` of its metadataset says."""

from __future__ import annotations

import json
import pickle
from itertools import islice

import pytest

from energy_data.config.load import load
from energy_data.errors import SpecError
from energy_data.remote.client import FetchClient
from energy_data.remote.object_store import Bucket

from . import data
from .conftest import INSIDE_KEY_ID, INSIDE_SECRET
from .test_streams import keys, loader, stream


def put(client, file, key, bucket="data"):
    access = {"ACL": "public-read"} if bucket == "open" else {}
    client.upload_file(str(file), bucket, key, ExtraArgs=access)


def meta(path, storage, *paths):
    """A metadataset of some datasets, with ids that do not depend on their paths."""
    leaves = [
        {"path": str(one)} | ({} if str(one).endswith(".yaml") else {"id": f"leaf {number}"})
        for number, one in enumerate(paths)
    ]
    text = {"storage": storage, "splits": {"train": {"blend": leaves}}}
    path.write_text(json.dumps(text))
    return path


@pytest.fixture
def files(tmp_path):
    """Three datasets of other texts each."""
    found = [tmp_path / f"{name}.jsonl" for name in ("a", "b", "c")]
    for size, file in zip((90, 150, 210), found, strict=True):
        data.jsonl(file, size=size)
    return found


@pytest.fixture
def stores(files, s3, inside, tmp_path):
    """A metadataset of the three in three stores."""
    put(s3, files[0], "outside/a.jsonl")
    put(inside.s3, files[1], "inside/b.jsonl")
    put(inside.anonymous, files[2], "c.jsonl", "open")
    storage = {
        "s3://data/inside": {"endpoint": inside.endpoint, "profile": "inside"},
        "s3://open": {"endpoint": inside.endpoint, "anonymous": True},
    }
    urls = ("s3://data/outside/a.jsonl", "s3://data/inside/b.jsonl", "s3://open/c.jsonl")
    return meta(tmp_path / "stores.yaml", storage, *urls)


def test_all_datasets_are_looked_at_by_one_message(stores, own_cache, monkeypatch):
    def look(*asked, **_):
        raise AssertionError(f"{asked} was looked at by itself")

    monkeypatch.setattr(FetchClient, "look", look)
    assert len(stream(stores, 3)) == 3


def test_a_dataset_that_is_missing_among_others_is_an_error_at_its_place(stores, own_cache):
    stores.write_text(stores.read_text().replace("inside/b.jsonl", "inside/missing.jsonl"))
    with pytest.raises(SpecError, match=r"stores\.yaml:1:\d+: .*'leaf 1': s3://.*no such object"):
        stream(stores, 1)


@pytest.mark.parametrize("variable", [None, "AWS_ENDPOINT_URL_S3"])
def test_one_run_reads_stores_of_the_environment_of_a_profile_and_without_credentials(
    variable, files, stores, s3, cache, tmp_path, monkeypatch
):
    if variable is not None:  # obstore prefers it to options
        monkeypatch.setenv(variable, s3.meta.endpoint_url)
    expected = stream(meta(tmp_path / "files.yaml", {}, *files), 60)
    assert stream(stores, 60, workers=1) == expected


def test_credentials_of_a_profile_are_nowhere_in_what_a_run_leaves(stores, own_cache, caplog):
    with loader(stores, workers=1) as one:
        list(islice(one, 4))
        state = json.dumps(one.state_dict())
        spec = pickle.dumps(one.dataset.spec)
    left = [file.read_bytes() for file in own_cache.rglob("*") if file.is_file()]
    for text in (state.encode(), spec, caplog.text.encode(), *left):
        assert INSIDE_SECRET.encode() not in text
        assert INSIDE_KEY_ID.encode() not in text


def test_a_bucket_that_moves_to_another_endpoint_resumes_exactly(
    files, s3, inside, cache, tmp_path
):
    url = "s3://data/moved/a.jsonl"
    put(s3, files[0], "moved/a.jsonl")
    put(inside.s3, files[0], "moved/a.jsonl")
    before = meta(tmp_path / "before.yaml", {}, url)
    options = {"endpoint": inside.endpoint, "profile": "inside"}
    after = meta(tmp_path / "after.yaml", {"s3://data": options}, url)
    expected = stream(before, 80)
    states = []
    for path in (before, after):
        with loader(path) as one:
            list(islice(one, 30))
            states.append(one.state_dict())
    assert states[0] == states[1]
    with loader(after) as other:
        other.load_state_dict(states[0])
        assert keys(islice(other, 50)) == expected[30:]


def test_two_runs_of_one_bucket_at_two_endpoints_do_not_mix_their_bytes(
    files, s3, inside, cache, tmp_path
):
    url = "s3://data/same/x.jsonl"
    put(s3, files[0], "same/x.jsonl")
    put(inside.s3, files[1], "same/x.jsonl")
    options = {"s3://data/same": {"endpoint": inside.endpoint, "profile": "inside"}}
    runs = [meta(tmp_path / "1.yaml", {}, url), meta(tmp_path / "2.yaml", options, url)]
    local = [meta(tmp_path / f"{file.stem}.yaml", {}, file) for file in files[:2]]
    with loader(runs[0]) as one, loader(runs[1]) as other:
        found = [keys(islice(each, 40)) for each in (one, other)]
    assert found == [stream(each, 40) for each in local]


def test_nested_metadatasets_and_their_datasets_have_the_options_of_the_outer_file(
    files, inside, cache, tmp_path
):
    put(inside.s3, files[0], "nested/a.jsonl")
    nested = b"splits: {train: {path: a.jsonl}}"
    inside.s3.put_object(Bucket="data", Key="nested/meta.yaml", Body=nested)
    options = {"s3://data": {"endpoint": inside.endpoint, "profile": "inside"}}
    outer = meta(tmp_path / "outer.yaml", options, "s3://data/nested/meta.yaml")
    assert len(stream(outer, 10)) == 10


def test_a_profile_that_is_not_there_is_an_error_at_once_with_its_name(
    stores, inside, cache, tmp_path
):
    options = {"s3://data": {"endpoint": inside.endpoint, "profile": "outside"}}
    path = meta(tmp_path / "none.yaml", options, "s3://data/x.jsonl")
    with pytest.raises(SpecError, match=r"the profile 'outside' has no credentials .*Check ~/"):
        loader(path)


def test_a_store_that_refuses_says_so_without_credentials(files, inside, cache, tmp_path):
    path = meta(
        tmp_path / "m.yaml", {"s3://data": {"endpoint": inside.endpoint}}, "s3://data/x.jsonl"
    )
    with pytest.raises(SpecError, match=r"s3://data/x\.jsonl: it cannot be read: 4 attempts"):
        loader(path)


def test_options_of_azure_and_google_are_those_of_obstore():
    azure = Bucket("az://data", {"account": "ours", "anonymous": True}).store
    assert azure.config == {
        "account_name": "ours", "container_name": "data", "skip_signature": "true",
    }  # fmt: skip
    google = Bucket("gs://data", {"anonymous": True}).store
    assert google.config == {"bucket": "data", "skip_signature": "true"}


def test_a_nested_file_that_was_read_before_its_options_were_known_is_an_error(
    s3, inside, cache, tmp_path
):
    for client in (s3, inside.s3):
        client.put_object(Bucket="data", Key="late.yaml", Body=b"splits: {train: {path: x}}")
    options = {"s3://data": {"endpoint": inside.endpoint, "profile": "inside"}}
    meta(tmp_path / "names.yaml", options, "s3://data/x.jsonl")
    outer = meta(tmp_path / "outer.yaml", {}, "s3://data/late.yaml", "names.yaml")
    with pytest.raises(SpecError, match=r"late\.yaml was read before a file below named options"):
        load(outer)
