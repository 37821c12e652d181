"""Datasets in a store have the parts and the sample types that they declare."""

import json

import pytest
from click.testing import CliRunner

from energy_data import WorkerConfig, get_loader, get_train_dataset
from energy_data.cli.main import main
from energy_data.data.typed.sample_types import TextSample

from . import data
from .test_sources import upload


def energy_data(*words):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def url(s3, own_cache, tmp_path):
    """A folder of texts with two parts, in the bucket."""
    kind = ["--sample-type", "TextSample", "--field-map", '{"text": "txt"}']
    data.tars(tmp_path / "declared")
    energy_data(
        "prepare", tmp_path / "declared", "--split-ratio", "1,1", "--non-interactive", *kind
    )
    upload(s3, tmp_path / "declared", "declared")
    return "s3://data/declared"


@pytest.mark.parametrize("keys", [{}, {"split_config": "split.yaml"}])
def test_training_on_a_store_has_samples_as_dataset_yaml_declares(keys, url):
    run = WorkerConfig(0, 1, 0, lanes=4)
    dataset = get_train_dataset(url, batch_size=4, worker_config=run, **keys)
    assert isinstance(next(iter(get_loader(dataset))), TextSample)


def test_info_shows_all_parts_of_a_dataset_in_a_store_with_their_type(url):
    train, val = json.loads(energy_data("info", url, "--json"))
    assert [train["id"], val["id"]] == [f"{url}:train", f"{url}:val"]
    assert train["sample_type"] == val["sample_type"] == "TextSample"


def test_joins_of_a_metadataset_in_a_store_leave_nothing_in_the_working_folder(
    url, s3, tmp_path, monkeypatch
):
    text = b"splits: {train: {join: {a: {path: declared}, b: {path: declared}}}}"
    s3.put_object(Bucket="data", Key="join.yaml", Body=text)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert "fine; train: 1 leaf, 200 samples" in energy_data("check", "s3://data/join.yaml")
    assert not list((tmp_path / "work").iterdir())
