"""States in object stores are read like those on a disk."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner

from energy_data import read_state
from energy_data.cli.main import main
from energy_data.errors import StateError

from . import data
from .test_sources import upload
from .test_streams import keys, loader


@pytest.fixture
def file(tmp_path):
    data.jsonl(tmp_path / "x.jsonl")
    return tmp_path / "x.jsonl"


def after(file, count):
    """A state, and the batches that follow it."""
    with loader(file) as one:
        batches = iter(one)
        list(islice(batches, count))
        return one.state_dict(), keys(islice(batches, 10))


def resumed(file, state):
    with loader(file) as one:
        one.load_state_dict(state)
        return keys(islice(one, 10))


@pytest.mark.parametrize("name", ["state.json", "state.pt"])
def test_a_state_in_a_bucket_restores(name, file, s3, cache, tmp_path):
    state, rest = after(file, 7)
    if name.endswith(".pt"):
        torch.save(state, tmp_path / name)
    else:
        (tmp_path / name).write_text(json.dumps(state))
    s3.upload_file(str(tmp_path / name), "data", f"states/{name}")
    assert resumed(file, read_state(f"s3://data/states/{name}")) == rest


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_of_a_checkpoint_in_a_bucket_only_the_loader_is_fetched(file, s3, own_cache, tmp_path):
    _, rest = after(file, 7)
    with loader(file) as one:
        list(islice(one, 7))
        values = {"model": {"weight": torch.arange(1_000_000)}, "loader": one}
        dcp.save(values, checkpoint_id=tmp_path / "step", no_dist=True)
    upload(s3, tmp_path / "step", "step")
    assert resumed(file, read_state("s3://data/step", key="loader")) == rest
    blocks = sum(one.stat().st_blocks for one in own_cache.rglob("*") if one.is_file())
    assert blocks * 512 < 1_000_000  # of the 8 MB of the model


def test_a_state_that_is_overwritten_is_read_again(file, http, cache):
    for count in (3, 5):
        state, _ = after(file, count)
        (http.folder / "latest.json").write_text(json.dumps(state))
        assert read_state(f"{http.url}/latest.json") == state


def test_a_state_that_is_not_there_is_an_error_with_its_url(http, cache):
    with pytest.raises(StateError, match=rf"{http.url}/none\.json: there is no such object"):
        read_state(f"{http.url}/none.json")


def test_damage_is_an_error_that_shows_the_url(http, cache):
    (http.folder / "damaged.json").write_text("{")
    with pytest.raises(StateError, match=rf"{http.url}/damaged\.json: it is neither JSON nor"):
        read_state(f"{http.url}/damaged.json")


def test_the_command_that_shows_states_takes_urls(file, http, cache):
    (http.folder / "shown.json").write_text(json.dumps(after(file, 3)[0]))
    done = CliRunner().invoke(main, ["state", "show", f"{http.url}/shown.json"])
    assert "next micro-batch: 3" in done.stdout


def test_a_plan_is_compared_with_a_state_at_a_url(file, http, cache):
    (http.folder / "planned.json").write_text(json.dumps(after(file, 3)[0]))
    words = ["plan", str(file), "--against", f"{http.url}/planned.json", "--batch-size", "8"]
    done = CliRunner().invoke(main, words)
    assert "a state at micro-batch 3 would be restored" in done.stdout, done.output
