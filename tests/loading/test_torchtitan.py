"""The dataloader for torchtitan; tests/judge/test_torchtitan.py runs it in the real trainer."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from token_files import write_datatrove

from energy_data import get_val_dataset
from energy_data.errors import MissingExtraError, SpecError, StateMismatchError

MODULE = "energy_data.integrations.torchtitan"
IGNORED = -100
WINDOWS = "path: corpus.ds, split_part: train, seq_len: 5, stride: 4, cu_seqlens: true"


class BaseDataLoader:
    @dataclass(kw_only=True, slots=True)
    class Config:
        dataset: str = ""
        dataset_path: str | None = None


@pytest.fixture
def titan(monkeypatch):
    """The module, imported with what it needs of torchtitan."""
    for name, names in {
        "tyro": {"conf": SimpleNamespace(Suppress="suppress")},
        "torchtitan.components.dataloader": {"BaseDataLoader": BaseDataLoader},
        "torchtitan.components.loss": {"IGNORE_INDEX": IGNORED},
    }.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**names))
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE)


@pytest.fixture
def made(titan, tmp_path):
    """Make dataloaders of one metadataset of windows, as the trainer does."""
    write_datatrove(tmp_path / "corpus", [list(range(9 * n, 9 * n + 9)) for n in range(9)])
    (tmp_path / "run.yaml").write_text(f"splits: {{train: {{{WINDOWS}}}, val: {{{WINDOWS}}}}}")

    def made(rank=0, of=1, *, seq_len=4, batch_size=2, **facts):
        config = titan.MetadatasetDataLoader.Config(
            **{"dataset_path": str(tmp_path / "run.yaml"), "lanes": 4, **facts}
        )
        return titan.MetadatasetDataLoader(
            config, dp_world_size=of, dp_rank=rank, seq_len=seq_len, local_batch_size=batch_size,
            tokenizer=None, snapshot_every_n_steps=10,
        )  # fmt: skip

    return made


def drawn(batches, count):
    return [inputs["input"].tolist() for inputs, _ in islice(batches, count)]


@pytest.mark.parametrize(
    ("length", "mask", "labels"),
    [
        (5, [1, 1, 1, 1, 1], [11, IGNORED, 21, 22]),
        (4, [1, 1, 1, 1, 1], [11, IGNORED, 21, IGNORED]),
        (5, [1, 1, 1, 0, 1], [11, IGNORED, IGNORED, 22]),
    ],
)
def test_a_label_is_the_next_token_of_the_document_unless_it_is_masked(titan, length, mask, labels):
    batch = {
        "tokens": torch.tensor([[10, 11, 20, 21, 22]]),
        "position_ids": torch.tensor([[0, 1, 0, 1, 2]]),
        "loss_mask": torch.tensor([mask], dtype=torch.bool),
    }
    batch = {name: value[:, :length] for name, value in batch.items()}
    inputs, found = titan.trainer_batch(batch, 4)
    assert inputs["input"].tolist() == [[10, 11, 20, 21]]
    assert inputs["positions"].tolist() == [[0, 1, 0, 1]]
    assert found.tolist() == [labels]


def test_a_state_is_that_of_the_rank_and_an_empty_one_is_a_fresh_start(made):
    one, again, fresh = made(1, 2), made(1, 2), made(1, 2)
    first = drawn(one, 3)
    again.load_state_dict(one.state_dict())
    fresh.load_state_dict({})
    assert sorted(one.state_dict()["places"]) == ["1", "3"]
    assert drawn(again, 3) == drawn(one, 3) != first == drawn(fresh, 3)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_after_an_edit_the_config_decides_what_a_state_restores(made, tmp_path):
    one = made()
    drawn(one, 3)
    dcp.save({"dataloader": one}, checkpoint_id=tmp_path / "step-3", no_dist=True)
    write_datatrove(tmp_path / "new", [list(range(99))])
    blend = f"{{{WINDOWS}}}, {{{WINDOWS.replace('corpus', 'new')}}}"
    (tmp_path / "run.yaml").write_text(f"splits: {{train: {{blend: [{blend}]}}}}")
    with pytest.raises(StateMismatchError):
        dcp.load({"dataloader": made()}, checkpoint_id=tmp_path / "step-3", no_dist=True)
    edited = made(on_mismatch="keep_matching")
    dcp.load({"dataloader": edited}, checkpoint_id=tmp_path / "step-3", no_dist=True)
    old, new = sorted(edited.loader.stats().leaves.items())
    assert (old[1].drawn, new[1].drawn) == (6, 0)


def test_validation_is_one_pass_or_begins_again(made):
    once = drawn(made(dataset=get_val_dataset, infinite=False), 100)
    assert len(once) == 10
    assert drawn(made(dataset=get_val_dataset), 25) == [*once, *once, *once[:5]]
    even = {"dataset": partial(get_val_dataset, even_batches="drop"), "infinite": False}
    assert [len(drawn(made(rank, 4, **even), 100)) for rank in range(4)] == [2, 2, 2, 2]
    with pytest.raises(SpecError, match=r"no batch for this rank.*even_batches='pad'"):
        next(iter(made(3, 4, dataset=get_val_dataset, batch_size=20)))


def test_what_cannot_be_trained_on_is_an_error(titan, made, tmp_path):
    with pytest.raises(SpecError, match="dataset_path is missing"):
        made(dataset_path=None)
    with pytest.raises(SpecError, match=r"must be a dict .*, found a list"):
        titan.trainer_batch([], 4)
    with pytest.raises(SpecError, match=r"\[batch, 9\] or \[batch, 8\], found \[2, 5\]"):
        next(iter(made(seq_len=8)))
    documents = made(dataset_path=str(tmp_path / "corpus.ds"))
    with pytest.raises(SpecError, match=r"found a dict with .*'tokens'.*cu_seqlens: true"):
        next(iter(documents))


@pytest.mark.skipif(importlib.util.find_spec("torchtitan"), reason="torchtitan is installed")
def test_without_torchtitan_its_extra_is_named():
    with pytest.raises(MissingExtraError, match=r"energy_data\[torchtitan\]"):
        importlib.import_module(MODULE)
